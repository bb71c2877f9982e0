"""Whether a fault was survived: afterwards the daemon answered, and what it said was right."""

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from tests.histories.record import Ended, Fault, Record, Request, Said

NOISY = "perturbed-"


def words_of(record: Record) -> dict[str, str]:
    """What each revision says that was published sound."""
    return {each.revision: each.says for each in record.publications if each.damage is None}


def wrong_words(said: Said, words: Mapping[str, str]) -> str | None:
    """What is wrong with an answer; noise may say anything."""
    if said.revision.startswith(NOISY):
        return None
    right = words.get(said.revision)
    if right is None:
        return f"an answer by {said.revision}, which nobody published sound: {said}"
    right *= said.times
    if said.text == right or (not said.whole and right.startswith(said.text)):
        return None
    return f"{said.text!r} by generation {said.generation}, which says {right!r}"


def survivors(record: Record) -> list[bool]:
    """Of each fault: whether somebody who asked after it was answered, and nobody wrongly."""
    asked = [each for each in record.requests if each.said and not each.is_bad]
    answered = sorted((each for each in asked if each.ended is Ended.ANSWERED), key=_start)
    words = words_of(record)
    wrong = [each.end for each in asked if any(wrong_words(said, words) for said in each.said)]
    return [_is_survived(fault, answered, wrong) for fault in record.faults]


def _is_survived(fault: Fault, answered: list[Request], wrong: list[float]) -> bool:
    place = bisect_left(answered, fault.end, key=_start)
    if place == len(answered):
        return False
    until = answered[place].end
    return not any(fault.at <= moment <= until for moment in wrong)


def _start(request: Request) -> float:
    return request.start


def check_survived(record: Record) -> Iterator[str]:
    """Every fault is survived."""
    for fault, is_survived in zip(record.faults, survivors(record), strict=True):
        if not is_survived:
            yield f"no right answer after {fault.name} from {fault.at:.3f} to {fault.end:.3f}"
