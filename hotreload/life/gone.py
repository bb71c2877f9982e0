"""Tells what a start does when it cannot bring back what was live last: it waits, or an older one
answers in its place. Neither is silent."""

from collections.abc import Sequence

from hotreload.core.ledger import PastGeneration
from hotreload.events import AttemptFinished, Event, OperatorAsked, Publish, Waiting
from hotreload.troubles import OLDER_ANSWERS, WAITS_FOR_FILES, Trouble
from hotreload.types import Outcome, Revision

TO_GO_ON = (
    "bring the files back, or mount what they lie on, and the start goes on by itself, as it does "
    'with a newer checkpoint; or decide what answers instead: [engine] boot = "model" starts from '
    'the model, [engine] when_gone = "older" from an older checkpoint'
)
TO_END_IT = (
    "bring its files back and hotreload makes it live again; if the older one is meant, "
    "`hotreload pin`"
)


class Gone:
    """Sees every event; its troubles end when the files are back or somebody decides."""

    def __init__(self, publish: Publish) -> None:
        self._publish = publish
        self._waits = Trouble(WAITS_FOR_FILES, publish)
        self._older = Trouble(OLDER_ANSWERS, publish)
        self._answers: Revision | None = None

    def waits(self, meant: PastGeneration | None, why: Sequence[str]) -> None:
        """The start waits; `why` says of each candidate why it does not answer."""
        name = _named(meant) if meant else "a checkpoint that was not refused"
        self._publish(Waiting(f"{name}: {why[0]}", "start"))
        told = dict.fromkeys(why)
        self._waits.now(f"the start waits for {name}: {'; '.join(told)}", TO_GO_ON)

    def waits_no_more(self) -> None:
        """Something is going to answer."""
        self._waits.now(None)

    def answers(self, older: Revision, instead_of: PastGeneration, why: str) -> None:
        """An older checkpoint answers in the place of what was live last."""
        self._answers = older
        words = f"{older} answers instead of {_named(instead_of)}, which was live last: {why}"
        self._older.now(words, TO_END_IT)

    def observe(self, event: Event) -> None:
        """An older one is meant once others were live or somebody pins it."""
        match event:
            case AttemptFinished(attempt):
                is_live = attempt.outcome is Outcome.LIVE and not attempt.revision.is_noise
                is_over = is_live and attempt.revision != self._answers
            case OperatorAsked(by, refusal=None):
                is_over = by.verb == "pin"
            case _:
                return
        if is_over:
            self._older.now(None)


def _named(place: PastGeneration) -> str:
    return f"generation {place.number}, {place.revision}"
