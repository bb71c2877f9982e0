"""What must hold of conversations: none changes weights in silence, or is refused for less."""

from collections.abc import Iterator

from tests.histories.record import Ended, Record, Request

GONE = "generation_gone"
"""The code by which a conversation hears that its weights answer no more."""
KEEP = 1.0
"""So many seconds they are kept for its next request ([sessions] keep)."""
TURNS = 3


def check_conversations(record: Record) -> Iterator[str]:
    """All answers of a conversation are made by the same weights; a restart begins it anew.

    One that is refused was answered before, and is never answered by others later.
    """
    began: dict[tuple[int, str], str] = {}
    for request in sorted(record.requests, key=lambda each: each.end):
        life = record.life_of(request)
        if not request.session or life is None:
            continue
        name = life.number, request.session
        for said in request.said:
            first = began.setdefault(name, said.fingerprint)
            if said.fingerprint != first and life.holds(request.start):
                yield (
                    f"conversation {request.session} of life {life.number} went from {first} to "
                    f"{said.fingerprint} at {request.start:.3f}"
                )
        if is_gone(request) and name not in began:
            yield f"conversation {request.session} was refused before it began: {request.fields}"


def is_gone(request: Request) -> bool:
    """Whether it heard that its weights answer no more."""
    return request.ended is Ended.REFUSED and request.fields.get("code") == GONE


def went_on_beside_newer(record: Record) -> bool:
    """Whether a conversation was answered by weights that were not live any more."""
    heard = [each for each in record.heard if each.fields["event"] == "generation.live"]
    live = [(each.at, int(each.fields["generation"])) for each in heard]
    talks = (each for each in record.requests if each.session and each.said)
    moves = ((talk, at, number) for talk in talks for at, number in live)
    return any(at < talk.start and number > talk.said[0].generation for talk, at, number in moves)
