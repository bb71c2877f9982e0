"""Words for what came of a bake: for the log, the history, and the reason of a refusal."""

from collections.abc import Iterable

from hotreload.features.bake.evidence import BAKE
from hotreload.features.bake.judgement import Bake, SignalCount
from hotreload.features.bake.signals import Signal
from hotreload.figures import percent
from hotreload.types import Reason

SAID: dict[str, str] = {
    Signal.ERROR: "errors",
    Signal.EMPTY: "empty answers",
    Signal.LENGTH: "answers without a stop",
    Signal.REPETITION: "answers that repeat themselves",
    Signal.LONG: "long answers",
}


def convicted_words(bake: Bake, found: Iterable[Signal]) -> str:
    """Say by which signals new weights are worse, with both intervals."""
    signals = {each.value for each in found}
    worse = "; ".join(_beside(bake, each) for each in bake.signals if each.signal in signals)
    return f"its answers are worse than those of {_against(bake)}: {worse}"


def refusal_of(bake: Bake) -> Reason:
    """The reason to refuse the weights, with a line for each signal."""
    return Reason(BAKE, bake.words, tuple(_beside(bake, each) for each in bake.signals))


def promoted_words(bake: Bake) -> str:
    """Name the smallest increase that would have been found."""
    finds = [
        f"{SAID[each.signal]} from {percent(_share(each.old_hits, bake.old_answers))} "
        f"to {percent(each.finds)}"
        for each in bake.signals
        if each.finds is not None
    ]
    return f"{_answers(bake)} are no worse; found would have been: {', '.join(finds)}"


def too_few_words(bake: Bake, then: str) -> str:
    """Say that there were too few answers to judge, and what follows."""
    return f"{_answers(bake)} are too few to tell anything; {then}"


def _answers(bake: Bake) -> str:
    return f"{bake.answers} answers beside {bake.old_answers} of {_against(bake)}"


def _against(bake: Bake) -> str:
    return f"generation {bake.against}"


def _beside(bake: Bake, count: SignalCount) -> str:
    new = f"{count.hits} of {bake.answers} ({percent(count.low)} to {percent(count.high)})"
    old = f"{count.old_hits} of {bake.old_answers}"
    return (
        f"{SAID[count.signal]} {new}, before {old} "
        f"({percent(count.old_low)} to {percent(count.old_high)})"
    )


def _share(hits: int, answers: int) -> float:
    return hits / answers if answers else 0.0
