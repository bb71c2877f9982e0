"""Judges a record: pure functions, each yielding in words what is wrong.

What holds for requests and answers is here; for generations and for what the daemon tells of
itself in the two modules beside it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import islice

from tests.histories.conversations import check_conversations, is_gone
from tests.histories.generations import (
    check_deserved,
    check_meaning,
    check_moves,
    check_order,
    check_pins,
    check_refused,
    check_rollbacks,
)
from tests.histories.record import Ended, Life, Record, Request, Said
from tests.histories.survived import check_survived, words_of, wrong_words
from tests.histories.views import check_history, check_metrics, check_remembered
from tests.histories.ways import (
    NOT_YET,
    check_endings,
    check_mode,
    check_new_enough,
    check_nobody_held,
    check_side_by_side,
)
from tests.integration.test_hostile_clients import REASONED

GENERATE = "/generate"
NOT_NOW = {"booting", "stopping", "swapping", "too_many_held", "too_many_requests", "not_ready"}
"""The codes of a 503 that a client may get from a daemon that is whole."""
GONE_ALREADY = "engine_lost"
"""The code by which a worker tells its clients that its daemon is there no more."""
NOTICED_WITHIN = 5.0
"""Seconds after which it is written down at the latest that a failpoint has ended a life."""
ADMIN_REFUSALS = {400, 409, 422, 503, 504}


# --- answers ---------------------------------------------------------------------------------


def check_texts(record: Record) -> Iterator[str]:
    """Each answer is what the revision named in it says; only sound published ones answer."""
    words = words_of(record)
    for request, said in _answers(record):
        wrong = wrong_words(said, words)
        if wrong is not None and not request.is_bad:
            yield wrong


def check_one_generation(record: Record) -> Iterator[str]:
    """No answer, stream or batch is made by two generations."""
    for request in record.requests:
        if len(makers := {each.generation for each in request.said}) > 1:
            yield f"one request answered by generations {sorted(makers)}, at {request.start:.3f}"


def check_announced(record: Record) -> Iterator[str]:
    """Who answers was told on /events before that life ended, or stands in its state file."""
    known = {life.number: _told(record, life) for life in record.lives}
    for request, said in _answers(record):
        life = record.life_of(request)
        who = (said.generation, said.revision, said.fingerprint)
        if life is None or who not in known[life.number]:
            yield f"an answer by {who}, which nobody announced, at {request.start:.3f}"


def _told(record: Record, life: Life) -> set[tuple[int, str, str]]:
    live = (each for each in record.events(life) if each["event"] == "generation.live")
    heard = {(each["generation"], each["revision"], each["fingerprint"]) for each in live}
    return heard | set(map(tuple, life.left)) if life.was_killed else heard  # type: ignore[arg-type]


def _answers(record: Record) -> Iterator[tuple[Request, Said]]:
    return ((request, said) for request in record.requests for said in request.said)


# --- how requests end ------------------------------------------------------------------------


def check_all_end(record: Record) -> Iterator[str]:
    """Nobody waits for ever, and an answer that was given has something in it."""
    for request in record.requests:
        if request.ended is Ended.HUNG:
            yield f"no end of {request.route} within a minute, from {request.start:.3f} on"
        is_answer = request.route == GENERATE and request.ended is Ended.ANSWERED
        if is_answer and not request.said:
            yield f"an answer without content at {request.start:.3f}: {request.fields}"


def check_closed(record: Record) -> Iterator[str]:
    """A connection breaks off only at a kill: nothing later is answered by that life."""
    last = {life.number: max(_answered(record, life), default=0.0) for life in record.lives}
    for request in record.requests:
        if request.ended is Ended.CLOSED:
            life = record.life_of(request)
            if life is None or not life.was_killed:
                yield f"{request.route} was cut off at {request.end:.3f}, and nobody was killed"
            elif last[life.number] > request.end:
                yield f"{request.route} was cut off at {request.end:.3f} by a daemon that lived on"


def check_reachable(record: Record) -> Iterator[str]:
    """While a life answers, it takes connections."""
    answered = {life.number: sorted(_answered(record, life)) for life in record.lives}
    ends = {life.number: sorted(_answered(record, life, ends=True)) for life in record.lives}
    for request in record.requests:
        if request.ended is not Ended.UNREACHABLE:
            continue
        for life in record.lives:
            before = bisect_left(ends[life.number], request.start)
            after = len(answered[life.number]) - bisect_right(answered[life.number], request.end)
            if before and after:
                yield f"nobody listened at {request.start:.3f}, in the middle of life {life.number}"


def _answered(record: Record, life: Life, *, ends: bool = False) -> list[float]:
    """When requests began (or ended) that this life answered."""
    whole = (each for each in record.requests if each.ended in (Ended.ANSWERED, Ended.REFUSED))
    own = (each for each in whole if life.holds(each.start) and life.holds(each.end))
    return [each.end if ends else each.start for each in own]


def check_refusals(record: Record) -> Iterator[str]:
    """Who is refused hears a reason that is true, and never a fault of ours."""
    ready = {life.number: _ready_at(record, life) for life in record.lives}
    for request in record.requests:
        if request.ended is Ended.REFUSED:
            life = record.life_of(request)
            since = ready[life.number] if life else 0.0
            wrong = _wrong_refusal(request) or _untimely(request, life, since)
            if wrong is not None:
                problem = {name: request.fields.get(name) for name in ("code", "detail", "reason")}
                yield f"{request.route} {request.status} at {request.start:.3f}: {wrong}: {problem}"


def _wrong_refusal(request: Request) -> str | None:
    status = request.fields.get("status", request.status)
    code = request.fields.get("code")
    if not code or not (request.fields.get("detail") or request.fields.get("reason")):
        return "no reason"
    if request.route.startswith("/admin/"):
        return None if status in ADMIN_REFUSALS and code != "engine_lost" else "not documented"
    if request.is_bad and status in REASONED - {503}:
        return None
    if (status, code) == (409, NOT_YET):
        return None if "min_generation" in request.asked else "none was asked for"
    if status == 409 and is_gone(request):
        return None if request.session else "it belonged to no conversation"
    return None if status == 503 and code in {*NOT_NOW, GONE_ALREADY} else "not documented"


def _untimely(request: Request, life: Life | None, ready: float) -> str | None:
    """Booting is over with the first generation, and stopping begins when it is told to stop."""
    code = request.fields["code"]
    if life is None:
        return "nobody was there"
    if code == GONE_ALREADY:
        return None if _was_ending(life, request.end) else "its daemon was there"
    if code == "booting" and request.start > ready:
        return "it had started"
    is_told = life.told == "stop" and life.told_at is not None and request.end >= life.told_at
    return "nobody told it to stop" if code == "stopping" and not is_told else None


def _was_ending(life: Life, moment: float) -> bool:
    if not life.was_killed or life.ended is None:
        return False
    return moment >= (life.ended - NOTICED_WITHIN if life.told_at is None else life.told_at)


def _ready_at(record: Record, life: Life) -> float:
    """Since when it has answered, as far as anybody was told."""
    ready = (each for each in record.looks("/readyz") if life.holds(each.start))
    return min((each.end for each in ready), default=float("inf"))


def check_ends(record: Record) -> Iterator[str]:
    """A life ends as it was told to, or by the failpoint it began with."""
    wanted = {"stop": 0, "kill": -9}
    for life in record.lives:
        if life.ended is None:
            yield f"life {life.number} never ended"
        elif life.told is not None and life.exit_code != wanted[life.told]:
            yield f"life {life.number}, told to {life.told}, ended with {life.exit_code}"
        elif life.told is None and not (life.was_killed and "=kill" in life.failpoints):
            yield f"life {life.number} ended by itself with {life.exit_code}"


SHOWN = 10
Check = Callable[[Record], Iterator[str]]

CHECKS: tuple[Check, ...] = (
    check_texts,
    check_one_generation,
    check_announced,
    check_all_end,
    check_closed,
    check_reachable,
    check_refusals,
    check_ends,
    check_meaning,
    check_order,
    check_moves,
    check_refused,
    check_deserved,
    check_rollbacks,
    check_pins,
    check_mode,
    check_nobody_held,
    check_side_by_side,
    check_endings,
    check_new_enough,
    check_conversations,
    check_history,
    check_metrics,
    check_remembered,
    check_survived,
)


def violations(record: Record) -> list[str]:
    """What is wrong, each with the name of the check that found it; of each check the first few."""
    found = ((check.__name__, islice(check(record), SHOWN)) for check in CHECKS)
    return [f"{name}: {words}" for name, wrong in found for words in wrong]
