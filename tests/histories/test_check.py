"""Each check of a history finds what it is for: a whole record, spoiled in one place at a time."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotreload.types import Mode
from tests.histories.check import CHECKS, violations
from tests.histories.conversations import GONE, went_on_beside_newer
from tests.histories.record import (
    Ended,
    Fault,
    Fields,
    Heard,
    Life,
    Publication,
    Record,
    Request,
    Said,
)
from tests.histories.ways import NOT_YET, answered_side_by_side

Spoil = Callable[[Record], object]

A, B, BAD = "rev-a", "rev-b", "rev-bad"
FIRST, SECOND, BACK = (1, A, "fp-a"), (2, B, "fp-b"), (3, A, "fp-a")
STATUS_NAMES = ("generation", "revision", "fingerprint")


def live(at: float, life: int, who: tuple[int, str, str]) -> Heard:
    fields = {
        "event": "generation.live",
        "label": who[1],
        **dict(zip(STATUS_NAMES, who, strict=True)),
    }
    return Heard(life, at, fields)


def ended(at: float, life: int, who: tuple[int, str, str]) -> Heard:
    event = live(at, life, who)
    return replace(event, fields={**event.fields, "event": "generation.ended"})


def over(at: float, life: int, outcome: str, revision: str, **more: Any) -> Heard:
    fields = {"code": None, "generation": None, "rolled_back": False, "by": None, **more}
    fields = {"pause_seconds": 0.0, **fields}
    names = {"event": f"reload.{outcome}", "outcome": outcome, "revision": revision}
    return Heard(life, at, {**names, "label": revision, **fields})


def answer(start: float, end: float, who: tuple[int, str, str], text: str) -> Request:
    return Request(start, end, "/generate", Ended.ANSWERED, 200, said=(Said(*who, text),))


def look(at: float, route: str, fields: Fields) -> Request:
    return Request(at, at + 0.1, route, Ended.ANSWERED, 200, fields=fields)


def status(
    at: float,
    who: tuple[int, str, str],
    refused: tuple[str, ...] = (),
    *,
    mode: Mode = Mode.OVERLAP,
    older: tuple[tuple[int, int], ...] = (),
) -> Request:
    fields = {
        **dict(zip(STATUS_NAMES, who, strict=True)),
        "refused": [[revision, revision, "nonfinite"] for revision in refused],
        "mode": mode.value,
        "answering": [{"generation": n, "requests": m} for n, m in ((who[0], 0), *older)],
    }
    return look(at, "/status", fields)


def metrics(at: float, lives: float, rejected: float) -> Request:
    counts = {"live": lives, "rejected": rejected, "postponed": 0.0, "superseded": 0.0, "lost": 0.0}
    held = {"live": 8.0, "previous": 8.0, "staged": 0.0}
    fields = {f'hotreload_reloads_total{{outcome="{name}"}}': n for name, n in counts.items()}
    fields |= {
        f'hotreload_weights_bytes{{place="{name}",replica="0"}}': n for name, n in held.items()
    }
    return look(at, "/metrics", {**fields, "hotreload_generation": 2.0})


def refusal(at: float, route: str, http: int, code: str) -> Request:
    problem = {"code": code, "detail": "why", "status": http}
    return Request(at, at + 0.1, route, Ended.REFUSED, http, fields=problem)


def wanting(start: float, number: int, answered: Request) -> Request:
    """One who asked for that generation or a newer one, and was answered so."""
    asked = {"min_generation": number}
    return replace(answered, start=start, end=start + 1, asked=asked)


def pinned(start: float, end: float, number: int) -> Request:
    said = {"pinned": True, "generation": number}
    return Request(start, end, "/admin/pin", Ended.ANSWERED, 200, fields=said)


def closed(at: float) -> Request:
    return Request(at, at + 0.1, "/generate", Ended.CLOSED)


ATTEMPT_A = [A, A, "live", None, 1, False, "start"]
ATTEMPT_B = [B, B, "live", None, 2, False, None]
ATTEMPT_BAD = [BAD, BAD, "rejected", "nonfinite", None, False, None]


def whole() -> Record:
    """A life that boots A, makes B live, refuses a bad one and is killed; one that rolls back.

    The first goes by overlap: A still answers when B does. The second drains.
    """
    record = Record()
    record.publications += [
        Publication(0, A, A, "says a"),
        Publication(0, B, B, "says b"),
        Publication(0, BAD, BAD, "says bad", "nan"),
    ]
    record.lives += [
        Life(1, 1, "", Mode.OVERLAP, "kill", 50, 51, -9, [FIRST, SECOND]),
        Life(2, 52, "", Mode.DRAIN, "stop", 90, 91, 0, [FIRST, SECOND, BACK]),
    ]
    record.heard += [
        live(5, 1, FIRST),
        over(5.1, 1, "live", A, generation=1, by={"verb": "start"}),
        live(20, 1, SECOND),
        over(21, 1, "live", B, generation=2),
        ended(25, 1, FIRST),
        over(30, 1, "rejected", BAD, code="nonfinite"),
        live(55, 2, SECOND),
        over(55.1, 2, "live", B, generation=2, by={"verb": "start"}),
        Heard(2, 69.5, {"event": "gate.holding"}),
        live(70, 2, BACK),
        over(71, 2, "live", A, generation=3, pause_seconds=0.5),
    ]
    record.requests += [
        Request(0, 0.5, "/generate", Ended.UNREACHABLE),
        refusal(2, "/generate", 503, "booting"),
        look(5, "/readyz", {"ready": True}),
        answer(6, 7, FIRST, "says a"),
        answer(15, 24, FIRST, "says a"),
        answer(16, 23, SECOND, "says b"),
        wanting(18, 2, answer(18, 19, SECOND, "says b")),
        status(23, SECOND, older=((1, 1),)),
        status(26, SECOND),
        status(35, SECOND, (BAD,)),
        look(36, "/history", {"attempts": [ATTEMPT_BAD, ATTEMPT_B, ATTEMPT_A]}),
        metrics(37, 2, 1),
        Request(49.9, 50.2, "/generate", Ended.CLOSED, said=(Said(*SECOND, "says", False),)),
        look(56, "/readyz", {"ready": True}),
        status(57, SECOND, (BAD,), mode=Mode.DRAIN),
        Request(
            69,
            71,
            "/admin/rollback",
            Ended.ANSWERED,
            200,
            fields={"outcome": "live", "generation": 3, "revision": A, "checksum_after": "fp-a"},
        ),
        answer(80, 81, BACK, "says a"),
        refusal(90, "/generate", 503, "stopping"),
    ]
    return record


def added(request: Request) -> Spoil:
    return lambda record: record.requests.append(request)


def heard(place: int, event: Heard) -> Spoil:
    return lambda record: record.heard.insert(place, event)


def told(route: str, **fields: Any) -> Spoil:
    """Other fields in the last answer of this route."""

    def spoil(record: Record) -> None:
        place = max(n for n, each in enumerate(record.requests) if each.route == route)
        old = record.requests[place]
        record.requests[place] = replace(old, fields={**old.fields, **fields})

    return spoil


def lived(place: int, **changes: Any) -> Spoil:
    def spoil(record: Record) -> None:
        record.lives[place] = replace(record.lives[place], **changes)

    return spoil


def said_in(session: str, who: tuple[int, str, str]) -> Spoil:
    """An answer in a conversation, while both generations answered."""
    return added(replace(answer(21, 22, who, f"says {who[1][-1]}"), session=session))


def both(*spoils: Spoil) -> Spoil:
    return lambda record: [spoil(record) for spoil in spoils]


STAGED = 'hotreload_weights_bytes{place="staged",replica="0"}'
COUNT = 'hotreload_reloads_total{outcome="rejected"}'
FORCED = Request(32, 33, "/admin/reload_weights", Ended.CLOSED, asked={"force": True})
TWO_IN_ONE = (Said(*FIRST, "says a"), Said(*SECOND, "says b"))
MADE_A = {"outcome": "live", "generation": 3, "revision": A}
TO_B = Request(69, 71, "/admin/rollback", Ended.ANSWERED, 200, {"generation": 2}, fields=MADE_A)
ASK, PIN = "/generate", "/admin/pin"

SPOILS: dict[str, dict[str, Spoil]] = {
    "check_texts": {
        "not as often as it was to be said": added(
            replace(answer(25, 26, SECOND, ""), said=(Said(*SECOND, "says b", True, 2),))
        ),
        "another's words": added(answer(25, 26, SECOND, "says a")),
        "half a text": added(answer(25, 26, SECOND, "says")),
        "by a revision nobody published": added(answer(25, 26, (2, "x", "y"), "says b")),
        "by a damaged one": added(answer(25, 26, (2, BAD, "y"), "says bad")),
    },
    "check_one_generation": {
        "two in one stream": added(replace(answer(17, 23, FIRST, ""), said=TWO_IN_ONE)),
    },
    "check_announced": {
        "a number nobody told": added(answer(81, 82, (4, A, "fp-a"), "says a")),
    },
    "check_all_end": {
        "no end": added(Request(25, 85, ASK, Ended.HUNG)),
        "an empty answer": added(Request(25, 26, ASK, Ended.ANSWERED, 200)),
    },
    "check_closed": {
        "cut off, and nobody killed": added(closed(60)),
        "cut off long before the kill": added(closed(12)),
    },
    "check_reachable": {
        "nobody listens in mid-life": added(Request(25, 25.1, "/status", Ended.UNREACHABLE)),
    },
    "check_refusals": {
        "a fault of ours": added(refusal(25, ASK, 500, "internal")),
        "a lost engine": added(refusal(25, ASK, 503, "engine_lost")),
        "a good request": added(refusal(25, ASK, 400, "bad_field")),
        "gone, in no conversation": added(refusal(25, ASK, 409, GONE)),
        "too new, and nobody asked for it": added(refusal(25, ASK, 409, NOT_YET)),
        "booting in mid-life": added(refusal(25, ASK, 503, "booting")),
        "stopping, and nobody told it": added(refusal(60, ASK, 503, "stopping")),
        "no reason": added(Request(25, 26, ASK, Ended.REFUSED, 503)),
        "an operator's 500": added(refusal(25, PIN, 500, "internal")),
    },
    "check_ends": {
        "a stop that is no success": lived(1, exit_code=1),
        "an end nobody wished": lived(0, told=None),
        "no end": lived(1, ended=None),
    },
    "check_meaning": {
        "a number used twice": heard(6, live(54, 2, (2, A, "fp-a"))),
        "bytes with two fingerprints": added(status(25, (2, B, "other"))),
    },
    "check_order": {
        "an old one answers on": added(answer(26, 27, FIRST, "says a")),
        "a status that lags": added(status(72, SECOND, (BAD,), mode=Mode.DRAIN)),
        "an answer before its time": added(answer(8, 9, SECOND, "says b")),
    },
    "check_moves": {
        "a number left out": heard(3, live(20.5, 1, (4, B, "fp-b"))),
        "live without an attempt": lambda record: record.heard.pop(),
        "a start with any number": lived(0, left=[FIRST, (9, B, "fp-b")]),
    },
    "check_refused": {
        "refused, and live": heard(6, live(40, 1, (3, BAD, "fp-bad"))),
        "refused, and tried again": heard(6, over(40, 1, "rejected", BAD, code="nonfinite")),
    },
    "check_deserved": {
        "for another reason": heard(6, over(40, 1, "rejected", BAD, code="shape")),
        "a sound one": heard(6, over(40, 1, "rejected", B, code="nonfinite")),
    },
    "check_rollbacks": {
        "to weights that never were": both(
            lived(1, left=[]),
            lambda record: record.heard.__setitem__(9, live(70, 2, (3, "new", "fp-new"))),
            lambda record: record.requests.pop(-2),
        ),
        "a false checksum": told("/admin/rollback", checksum_after="fp-b"),
        "to another than the named": added(TO_B),
    },
    "check_pins": {
        "another answers after it": added(pinned(72, 73, 2)),
        "another answers after a rollback that holds": both(
            told("/admin/rollback", pinned=True), added(answer(82, 83, SECOND, "says b"))
        ),
    },
    "check_mode": {
        "another way than it was started with": added(status(35, SECOND, mode=Mode.DRAIN)),
    },
    "check_nobody_held": {
        "a gate that closes": heard(3, Heard(1, 20.5, {"event": "gate.holding"})),
        "a pause": heard(6, over(40, 1, "postponed", A, pause_seconds=0.1)),
    },
    "check_side_by_side": {
        "the live one is not first": added(status(26, (3, A, "fp-a"), older=((4, 1),))),
        "nobody answers": told("/status", answering=[]),
        "an old one that answers nobody": added(status(24, SECOND, older=((1, 0),))),
        "two, though it drains": added(status(58, SECOND, mode=Mode.DRAIN, older=((1, 1),))),
        "three sets of weights": added(status(24, (8, "c", "d"), older=((2, 1), (1, 1)))),
    },
    "check_endings": {
        "the end of what is live": heard(6, ended(26, 1, SECOND)),
        "an end told twice": heard(6, ended(26, 1, FIRST)),
        "an end though it drains": heard(-1, ended(70.5, 2, SECOND)),
        "an old one that answers on": added(status(35, SECOND, (BAD,), older=((1, 1),))),
    },
    "check_new_enough": {
        "an older one than was asked for": added(wanting(24, 2, answer(24, 25, FIRST, "says a"))),
        "refused, and it is live": added(wanting(30, 2, refusal(30, ASK, 409, NOT_YET))),
    },
    "check_conversations": {
        "one that changed its weights": both(said_in("talk", FIRST), said_in("talk", SECOND)),
        "one that was refused before it began": added(
            replace(refusal(30, ASK, 409, GONE), session="talk")
        ),
    },
    "check_history": {
        "an attempt left out": told("/history", attempts=[ATTEMPT_BAD, ATTEMPT_A]),
        "in another order": told("/history", attempts=[ATTEMPT_B, ATTEMPT_BAD, ATTEMPT_A]),
    },
    "check_metrics": {
        "one not counted": told("/metrics", **{COUNT: 0.0}),
        "one counted twice": both(
            lived(0, exit_code=0, told="stop"), told("/metrics", **{COUNT: 2.0})
        ),
        "a set and a half": told("/metrics", **{STAGED: 12.0}),
    },
    "check_remembered": {
        "a refusal forgotten": added(status(82, BACK)),
    },
    "check_survived": {
        "no answer after it": lambda record: record.faults.append(Fault("a fault", 91, 92, "")),
    },
}
CASES = [(check, what) for check, spoils in SPOILS.items() for what in spoils]


def test_a_whole_record_has_nothing_wrong() -> None:
    assert violations(whole()) == []


@pytest.mark.parametrize(("check", "what"), CASES)
def test_each_check_finds_what_it_is_for(check: str, what: str) -> None:
    record = whole()
    SPOILS[check][what](record)
    record.requests.sort(key=lambda each: each.end)
    assert check in {each.partition(":")[0] for each in violations(record)}


def test_every_check_has_a_record_that_it_finds_wrong() -> None:
    assert {check.__name__ for check in CHECKS} == set(SPOILS)


def test_a_conversation_may_go_on_beside_newer_weights_and_hear_that_they_ended() -> None:
    record = whole()
    spoil = both(
        said_in("talk", FIRST), added(replace(answer(23, 24, FIRST, "says a"), session="talk"))
    )
    spoil(record)
    record.requests.append(replace(refusal(30, ASK, 409, GONE), session="talk"))
    record.requests.sort(key=lambda each: each.end)
    assert violations(record) == []
    assert went_on_beside_newer(record)
    assert not went_on_beside_newer(whole())


def test_who_is_under_way_when_it_is_killed_may_hear_that_from_its_worker() -> None:
    record = whole()
    record.requests.append(refusal(50, "/generate", 503, "engine_lost"))
    record.requests.sort(key=lambda each: each.end)
    assert violations(record) == []


def test_that_two_answered_at_once_is_seen() -> None:
    record = whole()
    assert answered_side_by_side(record)
    record.requests = [each for each in record.requests if each.route != "/status"]
    assert not answered_side_by_side(record)


def test_who_asks_for_what_comes_next_may_wait_in_vain() -> None:
    record = whole()
    record.requests.append(wanting(27, 3, refusal(27, ASK, 409, NOT_YET)))
    assert violations(record) == []


def test_what_an_operator_asks_for_after_a_pin_may_answer() -> None:
    record = whole()
    record.requests += [pinned(60, 61, 2), answer(62, 63, SECOND, "says b")]
    assert violations(record) == []


def test_what_an_operator_forces_may_go_live_after_a_refusal() -> None:
    record = whole()
    SPOILS["check_refused"]["refused, and live"](record)
    record.requests.append(FORCED)
    assert not [each for each in violations(record) if each.startswith("check_refused")]


def test_a_record_is_kept_as_lines_of_json(tmp_path: Path) -> None:
    record = whole()
    lines = record.save(tmp_path / "record.jsonl").read_text().splitlines()
    kept = len(record.publications) + len(record.lives) + len(record.heard) + len(record.requests)
    assert len(lines) == kept


def test_what_a_start_refused_before_anybody_listened_is_in_the_history_and_counted() -> None:
    record = whole()
    unheard = ["rev-x", "rev-x", "rejected", "index", None, False, "start"]
    changes = (
        told("/history", attempts=[ATTEMPT_BAD, ATTEMPT_B, ATTEMPT_A, unheard]),
        told("/metrics", **{COUNT: 2.0}),
        lived(0, exit_code=0, told="stop"),
    )
    for spoil in changes:
        spoil(record)
    assert not [each for each in violations(record) if each.startswith("check_metrics")]
