"""The documents of /status, /leaves and /events: the picture as JSON fields, sentence and rows."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TypedDict

from hotreload.attempts import Attempt, Refusal
from hotreload.core.decision import list_newer_refusals
from hotreload.events import Event, Progress, event_fields
from hotreload.json_fields import (
    ByFields,
    Fields,
    GenerationFields,
    LoadingFields,
    PassedOverFields,
    by_fields,
    generation_fields,
    iso,
    loading_fields,
    passed_over_fields,
    refusal_fields,
    revision_fields,
)
from hotreload.picture.checkpoints import Checkpoints
from hotreload.picture.history import AttemptFields, History, loading_of
from hotreload.picture.picture import Picture, Rank, ReplicaFigures, State, verdict_fields
from hotreload.picture.replicas import IntegrityFields
from hotreload.picture.rows import rows_of
from hotreload.picture.summary import summed_up
from hotreload.picture.surroundings import (
    NONE_PASSED_OVER,
    SettingsFields,
    StateFileFields,
    last_life_fields,
    settings_fields,
    state_file_fields,
)
from hotreload.picture.under_way import START_PHASES, USUAL_PHASES, BootFields
from hotreload.picture.words import OfFeatures
from hotreload.types import AnsweringGeneration, GateState, Generation, Mode

NO_GENERATION: Fields = dict.fromkeys(GenerationFields.__annotations__)
SHOWN_SECONDS = 24 * 3600.0
"""A refusal of a checkpoint that the source no longer has is shown for so long."""


class AnsweringFields(TypedDict):
    """A generation that answers requests now, and how many."""

    generation: int
    requests: int


class GateFields(TypedDict):
    """The gate before the engines, and the requests inside it and held by it."""

    state: GateState
    inside: int
    held: int


class ReloadStatusFields(TypedDict):
    """The live weights, the wanted ones, and how far they are."""

    state: str
    generation: int | None
    mode: Mode | None
    answering: list[AnsweringFields]
    wanted: str | None
    waiting_for: str | None
    phase: str | None
    last_attempt: AttemptFields | None


class StatusFields(ReloadStatusFields, IntegrityFields, PassedOverFields):
    """The live weights, the wanted ones, the attempt under way, and all that may be wrong."""

    revision: str | None
    label: str | None
    weight_version: str | None
    fingerprint: str | None
    live_since: str | None
    loading: LoadingFields | None
    noise: bool
    mode_reason: str | None
    gate: GateFields
    replicas: list[Fields]
    rank: Rank | None
    boot: BootFields | None
    refused: list[Fields]
    pinned: bool
    pin: ByFields | None
    overruled: ByFields | None
    state_file: StateFileFields
    settings: SettingsFields


class LeavesFields(TypedDict):
    """Checksums of the live leaves, and which of them moved."""

    generation: int | None
    fingerprint: str | None
    leaves: Fields
    changed: list[str]
    previous: Fields | None


class Status:
    """Renders the picture as JSON fields."""

    def __init__(self, picture: Picture, *, named: Callable[[], Sequence[str]] = tuple) -> None:
        """`named` lists the ids of revisions that the source has now, the newest first."""
        self.picture = picture
        self._named = named

    def verdict(self, asked: str | None = None) -> Fields:
        """Return the /gate document; `pass` says whether what was wanted last is live for good.

        Or the revision that is `asked` about, by its id or label.
        """
        newer = list_newer_refusals(self.picture.ledger, self._named())
        return verdict_fields(self.picture, newer[0] if newer else None, asked)

    def page_for_gateways(self) -> str:
        """Return the few metrics that gateways read many times a second, as they are now."""
        return "".join(report.page_for_gateways() for report in self.picture.reports)

    def snapshot(self) -> Fields:
        """Return the /status document."""
        status: Fields = {
            "state": self.picture.state.value,
            "reasons": self.picture.ready()[1],
            **self._live(),
            **self._requests(),
            **self._attempt_fields(),
            **self._ledger(),
            **self._health(),
        }
        said = self._said_by_features(status)
        return {**status, "summary": summed_up(status, said), "rows": rows_of(status, said)}

    def _said_by_features(self, status: Fields) -> OfFeatures:
        reports, attempt, last = self.picture.reports, status["attempt"], status["last_attempt"]
        at_work = (report.at_work(attempt) for report in reports if attempt)
        word = self.picture.history.word.values() if last else ()
        return OfFeatures(
            held=next(filter(None, (report.holds(status) for report in reports)), None),
            at_work=next(filter(None, at_work), None),
            rows=[row for report in reports for row in report.rows(status)],
            last_attempt=[line for each in word for line in each(last, True).all_lines],
        )

    def _live(self) -> Fields:
        """Return the live generation, and how it was made."""
        live, ledger = self.picture.live, self.picture.ledger
        loading = loading_of(live, ledger.attempts) if live else None
        return {
            **(generation_fields(live) if live else NO_GENERATION),
            "loading": loading and loading_fields(loading),
            "noise": live is not None and live.revision.is_noise,
        }

    def _requests(self) -> Fields:
        """Return requests: the engines and generations that answer, and how a swap treats them."""
        picture = self.picture
        readings = dict(enumerate(picture.readings.replicas()))
        engines = range(picture.setup.replicas)
        replicas = [self._replica(at, readings.get(at, ReplicaFigures())) for at in engines]
        inside, held = (sum(each["gate"][name] for each in replicas) for name in ("inside", "held"))
        return {
            **self._mode(),
            "answering": answering_fields(picture.readings.answering()),
            "gate": GateFields(state=picture.replicas.gate, inside=inside, held=held),
            **{name: told for each in picture.reports for name, told in each.fields().items()},
            "replicas": replicas,
            "workers": picture.workers.fields(),
            "rank": picture.setup.rank and asdict(picture.setup.rank),
        }

    def _attempt_fields(self) -> Fields:
        """Return the wish, the attempt, and what they wait for."""
        picture = self.picture
        passed = picture.passed_over.event or NONE_PASSED_OVER
        wanted, phase, last = picture.wishes.wanted, picture.under_way.phase, picture.history.last
        is_booting = picture.state is State.BOOTING
        usual = START_PHASES if is_booting else USUAL_PHASES[picture.replicas.mode or Mode.DRAIN]
        if (attempt := picture.under_way.fields()) is not None:
            for each in picture.reports:
                attempt |= each.attempt_fields()
            attempt["expected"] = picture.under_way.list_expected(usual)
        return {
            "wanted": wanted.id if wanted else None,
            "wanted_label": wanted.label if wanted else None,
            "waiting_for": picture.wishes.waiting_for,
            "waiting_seconds": picture.wishes.waiting_seconds,
            "phase": phase.value if phase else None,
            "attempt": attempt,
            "boot": picture.booting.fields() if is_booting else None,
            "progress": picture.pace.fields(),
            "source": picture.source.fields(),
            **passed_over_fields(passed.folders, passed.counts),
            "last_attempt": picture.history.describe(last) if last else None,
        }

    def _ledger(self) -> Fields:
        """Refusals, and operators' choices."""
        ledger, last = self.picture.ledger, self.picture.history.last
        holds, over = frozenset(self._named()).__contains__, ledger.overruled
        refused = refusals_shown(ledger.refused.values(), last, holds, self.picture.wall())
        return {
            "refused": [refusal_fields(refusal) for refusal in refused],
            "refused_newer": self._refused_newer(),
            "pinned": ledger.pinned,
            "pin": ledger.pinned_by and by_fields(ledger.pinned_by),
            "overruled": over and {**by_fields(over.by), **revision_fields(over.wish)},
        }

    def _refused_newer(self) -> Fields | None:
        """Return the newest refusal of a revision newer than all that went live, and its row."""
        newer = list_newer_refusals(self.picture.ledger, self._named())
        if not newer or self.picture.live is None:
            return None
        since = min(each.at for each in newer)
        return {
            **refusal_fields(newer[0]),
            "in_a_row": len(newer),
            "since": iso(since),
            "seconds": round(self.picture.wall() - since, 3),
        }

    def _health(self) -> Fields:
        """All that may be wrong."""
        picture = self.picture
        return {
            **picture.replicas.trust_fields(),
            "state_file": state_file_fields(picture.state_file),
            "settings": settings_fields(picture.settings),
            "troubles": picture.troubles.fields(),
            "last_life": last_life_fields(picture.last_life),
        }

    def event(self, event: Event) -> Fields:
        """Return an event as /events sends it; the progress of a download comes with its pace."""
        pace = self.picture.pace.pace() if isinstance(event, Progress) else {}
        return {"at": iso(self.picture.wall()), **event_fields(event), **pace}

    def leaves(self) -> LeavesFields:
        """Return the /leaves document: checksums as they went live, and which of them moved."""
        live, before = self.picture.live, self.picture.replicas.before
        old = before.leaves if before else None
        new = live.leaves if live else {}
        moved = [] if old is None else sorted(p for p in new if new[p] != old.get(p))
        return {
            "generation": live.number if live else None,
            "fingerprint": live.fingerprint if live else None,
            "leaves": dict(new),
            "changed": moved,
            "previous": _weights_fields(before) if before else None,
        }

    def _replica(self, index: int, reading: ReplicaFigures) -> Fields:
        """Return one of the engines: its weights, the generations in it, and the gate before it."""
        picture, tp = self.picture, self.picture.setup.tp
        now = picture.replicas.all[index]
        gate = GateFields(state=now.gate, inside=reading.inside, held=reading.held)
        return {
            "index": index,
            "devices": list(range(index * tp, (index + 1) * tp)),
            **now.fields(picture.wall()),
            "since": iso(now.since),
            **self._mode(),
            **(generation_fields(now.live) if now.live else NO_GENERATION),
            "answering": answering_fields(reading.answering),
            "gate": gate,
            **now.trust.fields(),
        }

    def _mode(self) -> Fields:
        """Return the way in which weights are exchanged: engines of one model do it alike."""
        replicas = self.picture.replicas
        return {"mode": replicas.mode and replicas.mode.value, "mode_reason": replicas.mode_reason}


@dataclass(frozen=True, slots=True)
class Documents:
    """All documents that the server shows."""

    status: Status
    history: History
    checkpoints: Checkpoints


def answering_fields(answering: Sequence[AnsweringGeneration]) -> list[AnsweringFields]:
    """Return how many requests each generation answers."""
    return [{"generation": each.generation.number, "requests": each.requests} for each in answering]


def _weights_fields(generation: Generation) -> Fields:
    return {
        "generation": generation.number,
        "fingerprint": generation.fingerprint,
        "leaves": dict(generation.leaves),
    }


def refusals_shown(
    refusals: Iterable[Refusal],
    last: Attempt | None,
    holds: Callable[[str], bool],
    now: float,
) -> list[Refusal]:
    """Return those of the last day, the last attempt and what the source holds, newest first."""

    def is_of_note(each: Refusal) -> bool:
        was_last = last is not None and last.revision == each.revision
        return now - each.at < SHOWN_SECONDS or was_last or holds(each.revision.id)

    return sorted(filter(is_of_note, refusals), key=lambda refusal: -refusal.at)
