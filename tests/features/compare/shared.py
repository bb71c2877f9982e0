"""What the comparisons of a core in a test share."""

from collections.abc import Callable

from hotreload.features.compare.comparison import KnownAnswers
from hotreload.features.compare.evidence import LiveCompared
from hotreload.features.compare.judge import AllComparisons
from hotreload.features.compare.replay import RequestRecorder
from hotreload.types import Generation, Reason


def _untold(found: LiveCompared) -> None:
    """Tell nobody."""


def _left(reason: Reason, live: Generation) -> None:
    raise AssertionError(f"{live} is to be left: {reason}")


def shared(
    recorder: RequestRecorder | None = None,
    tell: Callable[[LiveCompared], None] = _untold,
    leave: Callable[[Reason, Generation], None] = _left,
) -> AllComparisons:
    return AllComparisons(recorder or RequestRecorder(), KnownAnswers(), tell, leave)
