"""What must hold of the two ways: by overlap nobody is held, by draining one generation answers."""

from collections.abc import Iterator, Sequence

from hotreload.types import Mode
from tests.histories.generations import sightings
from tests.histories.record import Ended, Fields, Life, Record, Request

SETS = 2
"""So many sets of weights may be on the device ([reload] sets)."""
NOT_YET = "generation_not_live"


def check_mode(record: Record) -> Iterator[str]:
    """The status names the way that the life was started with, once something is live."""
    for life, look in record.looks_by_life("/status"):
        told = look.fields["mode"]
        if look.fields["generation"] is not None and told != life.mode:
            yield f"life {life.number} goes by {life.mode}, and its status says {told}"


def check_nobody_held(record: Record) -> Iterator[str]:
    """By overlap no gate closes for a swap, and no attempt tells of a pause."""
    for life in _by_overlap(record):
        for event in record.events(life):
            if event["event"] == "gate.holding" or event.get("pause_seconds"):
                yield f"life {life.number} held arrivals: {event}"


def check_side_by_side(record: Record) -> Iterator[str]:
    """Who answers is told, newest first: what is live, and older ones as long as they must.

    By draining it is one; by overlap no more than there may be sets of weights. Generations that a
    rollback made of the same weights count once.
    """
    weights = {each.number: each.identity for each in sightings(record)}
    for life, look in record.looks_by_life("/status"):
        if look.fields["generation"] is None:
            continue
        answering = look.fields["answering"]
        numbers = [each["generation"] for each in answering]
        most = 1 if life.mode == Mode.DRAIN else SETS
        wrong = _wrong_order(numbers, answering, look.fields["generation"])
        if wrong is None and len({weights.get(number, number) for number in numbers}) > most:
            wrong = f"more than {most} sets of weights answer"
        if wrong is not None:
            yield f"life {life.number}, at {look.start:.3f}: {wrong}: {answering}"


def _wrong_order(numbers: Sequence[int], answering: Sequence[Fields], live: int) -> str | None:
    if not numbers or numbers[0] != live:
        return f"{live} is live, and is not the first"
    if sorted(set(numbers), reverse=True) != list(numbers):
        return "not newest first"
    idle = any(each["requests"] < 1 for each in answering[1:])
    return "an old one answers nobody" if idle else None


def check_endings(record: Record) -> Iterator[str]:
    """A generation ends once, after another went live; from then on nobody says that it answers."""
    for life in record.lives:
        ended: dict[int, float] = {}
        live: set[int] = set()
        for heard in (each for each in record.heard if each.life == life.number):
            number = heard.fields.get("generation")
            if heard.fields["event"] == "generation.live":
                live.add(heard.fields["generation"])
            elif heard.fields["event"] == "generation.ended":
                assert number is not None
                if number in ended or number not in live or number == max(live):
                    yield f"life {life.number}: generation {number} ended, of {sorted(live)}"
                ended[number] = heard.at
        if ended and life.mode == Mode.DRAIN:
            yield f"life {life.number} drains, and told that {sorted(ended)} ended"
        yield from _answers_on(record, life, ended)


def _answers_on(record: Record, life: Life, ended: dict[int, float]) -> Iterator[str]:
    for its_life, look in record.looks_by_life("/status"):
        if its_life is life:
            for each in look.fields["answering"] or ():
                if look.start > ended.get(each["generation"], look.start):
                    yield f"generation {each['generation']} answers after its end: {look.fields}"


def check_new_enough(record: Record) -> Iterator[str]:
    """Who asks for a generation gets that one or a newer; it is refused only as long as none is."""
    first_seen: dict[int, float] = {}
    for each in sightings(record):
        first_seen[each.number] = min(each.end, first_seen.get(each.number, each.end))
    for request in record.requests:
        wanted = request.asked.get("min_generation")
        if wanted is None:
            continue
        if older := [said.generation for said in request.said if said.generation < wanted]:
            yield f"{older} answered who asked for {wanted}, at {request.start:.3f}"
        was_there = any(
            number >= wanted and at < request.start for number, at in first_seen.items()
        )
        if was_there and _is_not_yet(request):
            yield f"{wanted} was refused at {request.start:.3f}, when it had been seen"


def _is_not_yet(request: Request) -> bool:
    return request.ended is Ended.REFUSED and request.fields.get("code") == NOT_YET


def _by_overlap(record: Record) -> Iterator[Life]:
    return (life for life in record.lives if life.mode == Mode.OVERLAP)


def answered_side_by_side(record: Record) -> bool:
    """Whether anybody saw two sets of weights answer at the same time."""
    return any(len(look.fields["answering"] or ()) > 1 for look in record.looks("/status"))
