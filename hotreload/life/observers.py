"""The observers of events: the picture, and the log, metrics and systemd that render it."""

from collections.abc import Callable, Collection, Mapping
from functools import partial

from hotreload.core.ledger import Ledger
from hotreload.core.ports import Source
from hotreload.events import Events
from hotreload.feature import AllFeatures
from hotreload.life.serving_slot import ServingSlot
from hotreload.life.workers import counted_workers
from hotreload.observe.log import LogObserver
from hotreload.observe.metrics import Metrics
from hotreload.observe.systemd import LONGEST_BOOT, Notifier, Systemd
from hotreload.picture.checkpoints import Checkpoints
from hotreload.picture.picture import KeyFigures, Picture, Rank, Readings, Setup
from hotreload.picture.status import Documents, Status
from hotreload.picture.words import WordAttempt
from hotreload.server.http.request_log import COUNTED_FROM_THE_START, COUNTED_ONCE_ASKED
from hotreload.settings.sections import Settings


class Observers:
    """Subscribes every observer to the events: the picture first, then those that render it."""

    def __init__(
        self,
        settings: Settings,
        events: Events,
        *,
        ledger: Ledger,
        slot: ServingSlot,
        source: Source,
        features: AllFeatures,
        reasons: Collection[str],
        word: Mapping[str, WordAttempt],
        rank: Rank | None,
        silences: Callable[[], Mapping[int, float]],
        keys: Callable[[], Mapping[str, KeyFigures]],
    ) -> None:
        """`reasons` are the codes of the features' refusals.

        `word` puts a judge's findings into words, by the judge's name. `silences` returns the
        seconds since each other rank's last sign of life, `keys` what named API keys asked for.
        """
        on_device = settings.reload.keep_previous == "device"
        self.picture = Picture(
            ledger,
            setup=Setup(
                replicas=settings.engine.replicas,
                tp=settings.engine.tp,
                workers=counted_workers(settings.server.workers),
                source_kind=settings.source.kind,
                rank=rank,
            ),
            readings=Readings(
                replicas=partial(slot.read, previous_is_on_device=on_device),
                answering=slot.entrance.list_answering,
                silences=silences,
                keys=keys,
            ),
            reports=features.reports,
            word=word,
        )
        self.status = Status(self.picture, named=source.list_ids)
        self.documents = Documents(
            self.status, self.picture.history, Checkpoints(self.picture, source.list_seen)
        )
        of_features = (path for each in features.routes for path in each.paths)
        self.metrics = Metrics(
            self.picture,
            max_leaves=settings.metrics.max_leaves if settings.metrics.per_leaf else 0,
            expect_every=settings.metrics.expect_every,
            routes=COUNTED_FROM_THE_START,
            later_routes=[*COUNTED_ONCE_ASKED, *of_features],
            reasons=reasons,
        )
        self.systemd = Systemd(
            self.picture,
            Notifier(),
            is_alive=slot.is_turning,
            longest_boot=LONGEST_BOOT + settings.longest_download,
        )
        for observer in (
            self.picture,
            LogObserver(self.picture.pace),
            self.metrics,
            self.systemd,
        ):
            events.subscribe(observer.observe)
