"""Whether the own loader is trusted and the live weights are whole: in status, metrics and log."""

from typing import Any

from hotreload.events import Event, GenerationLive, LiveDrifted, LiveVerified, LoaderDistrusted
from hotreload.picture.replicas import ReplicasNow
from tests.clock import Clock
from tests.observe.test_log import logged
from tests.observe.things import NOON, STEP_8, generation

LIVE = generation(3)
DRIFTED = LiveDrifted(LIVE, ("b", "d"))
NAMED = {"leaves": ["b", "d"], "leaves_total": 2}


def after(*events: Event) -> ReplicasNow:
    clock = Clock(NOON)
    integrity = ReplicasNow(wall=clock)
    for event in events:
        integrity.observe(event)
        clock.now += 60
    return integrity


def numbers(integrity: ReplicasNow) -> dict[str, Any]:
    return {
        family.name.removeprefix("hotreload_"): family.series[0][1]
        for family in integrity.trust_families()
    }


def test_at_first_the_loader_is_trusted_and_nothing_is_known_to_have_drifted() -> None:
    assert after().trust_fields() == {
        "loader": {"trusted": True, "reason": None},
        "drifted": None,
        "verified_at": None,
    }
    assert numbers(after()) == {
        "loader_trusted": 1,
        "live_drifted": 0,
        "live_verified_timestamp_seconds": 0,
    }


def test_a_loader_that_is_switched_off_stays_so() -> None:
    integrity = after(LoaderDistrusted("leaf b differs"), GenerationLive(LIVE))
    assert integrity.trust_fields()["loader"] == {"trusted": False, "reason": "leaf b differs"}
    assert numbers(integrity)["loader_trusted"] == 0


def test_leaves_that_drifted_are_named_with_since_when() -> None:
    integrity = after(GenerationLive(LIVE), DRIFTED, DRIFTED)
    since = "2023-11-14T22:14:20.000Z"
    assert integrity.trust_fields()["drifted"] == {**NAMED, "since": since}
    assert numbers(integrity)["live_drifted"] == 1


def test_of_many_leaves_the_first_are_named_and_all_are_counted() -> None:
    many = tuple(f"leaf {number:03}" for number in range(900))
    told = after(LiveDrifted(LIVE, many)).trust_fields()["drifted"]
    assert told is not None
    assert (told["leaves"], told["leaves_total"]) == (list(many[:10]), 900)


def test_other_weights_are_not_known_to_have_drifted() -> None:
    integrity = after(LiveVerified(LIVE), DRIFTED, GenerationLive(generation(4, STEP_8)))
    assert (integrity.trust_fields()["drifted"], integrity.trust_fields()["verified_at"]) == (
        None,
        None,
    )
    assert numbers(integrity)["live_drifted"] == 0


def test_leaves_that_are_found_whole_again_have_not_drifted() -> None:
    integrity = after(DRIFTED, LiveVerified(LIVE))
    assert integrity.trust_fields()["drifted"] is None
    assert integrity.trust_fields()["verified_at"] == "2023-11-14T22:14:20.000Z"
    assert numbers(integrity)["live_verified_timestamp_seconds"] == NOON + 60


def test_both_are_errors_in_the_log_that_say_what_to_do() -> None:
    lines = logged(LoaderDistrusted("leaf b differs"), DRIFTED, LiveVerified(LIVE))
    assert [(line["event"], line["level"]) for line in lines] == [
        ("loader.distrusted", "error"),
        ("live.drifted", "error"),
    ]
    assert lines[0]["reason"] == "leaf b differs"
    assert lines[1].items() >= {**NAMED, "generation": 3}.items()
    assert all(line["todo"] for line in lines)
