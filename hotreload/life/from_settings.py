"""Makes parts of the daemon as the settings say: its source, and its observers of events.

The picture takes in each event first; log, metrics and systemd render it.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from hotreload.checkpoint.digests import Digests
from hotreload.core.decision import list_worth_keeping
from hotreload.core.ledger import Ledger
from hotreload.core.ports import Source
from hotreload.events import Events, Publish
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
from hotreload.settings.credentials import TOKEN, RenewedSecret, read_secret
from hotreload.settings.sections import Settings
from hotreload.sources.directory import DirectorySource
from hotreload.sources.hub.client import HubOptions, usual_token
from hotreload.sources.huggingface import HuggingFaceSource
from hotreload.sources.place import FolderOptions
from hotreload.sources.settings import FolderSettings, HubSettings, SourceSettings


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


def make_source(settings: Settings, publish: Publish, ledger: Ledger, digests: Digests) -> Source:
    """Make a source of the kind that is configured."""
    source, engine = settings.source, settings.engine
    # A start, other hosts and sglang-jax's loader must know the content before they load it.
    is_once = engine.nnodes == 1 and engine.loader == "auto"

    def reads_once() -> bool:
        """Return True if staging may be the first to read finished files."""
        return is_once and ledger.live is not None

    if source.kind == "huggingface":
        assert source.repo is not None, "it was found missing before"
        token = token_of(source.token_file)
        return HuggingFaceSource(
            source.repo,
            HubOptions(**_settings_of(HubSettings, source), token=token, reads_once=reads_once),
            cache=settings.hub_cache,
            digests=digests,
            kept=lambda: list_worth_keeping(ledger),
            folders=[*([engine.model] if engine.model else []), *settings.server.update_roots],
            publish=publish,
        )
    assert source.path is not None, "it was found missing before"
    roots = settings.checkpoint_roots
    return DirectorySource(
        source.path,
        FolderOptions(**_settings_of(FolderSettings, source), roots=roots, reads_once=reads_once),
        digests=digests,
        publish=publish,
        is_refused=lambda id: id in ledger.refused,
        generations=lambda: tuple(ledger.generations),
    )


def _settings_of(table: type[Any], source: SourceSettings) -> dict[str, Any]:
    """Return the settings of one kind of source."""
    return {each.name: getattr(source, each.name) for each in fields(table)}


def token_of(file: Path | None) -> Callable[[], str | None]:
    """Return what reads the token each time that it is needed: it may be renewed."""
    return usual_token if file is None else RenewedSecret(partial(read_secret, file, TOKEN))
