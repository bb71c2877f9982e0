"""What `hotreload status` and `hotreload top` say of each engine, where there are several."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hotreload.cli.client.show import ago, for_here
from hotreload.cli.client.texts import status_text
from hotreload.events import Event, LiveDrifted, PhaseEntered, ReplicaMoved
from hotreload.types import Phase, ReplicaState
from tests.observe.test_replicas import BOTH, FIRST, OLD, status
from tests.observe.test_status import BOOTED, after
from tests.observe.things import STEP_8

NOW = datetime.now(UTC)


def lines(*events: Event) -> list[tuple[str, str | None]]:
    """What is said three minutes after the second engine is as it is."""
    said = status(*events).snapshot()
    then = datetime.fromisoformat(said["replicas"][1]["since"])
    return replica_lines(said, then + timedelta(minutes=3))


def replica_lines(said: dict[str, Any], now: datetime) -> list[tuple[str, str | None]]:
    rows = (row for row in said["rows"] if row["name"].startswith("replica "))
    return [(for_here(f"{row['name']} {row['words']}", now, ago), row["tone"]) for row in rows]


def test_one_engine_alone_has_no_line() -> None:
    alone: dict[str, Any] = after(*BOOTED).snapshot()
    assert replica_lines(alone, NOW) == []
    assert "replica" not in status_text(alone, NOW)


@pytest.mark.parametrize(
    ("moved", "words"),
    [
        (ReplicaMoved(1, ReplicaState.STARTING), "replica 1 starting, began 3 min ago"),
        (ReplicaMoved(1, ReplicaState.LOST, "no room"), "replica 1 lost 3 min ago: no room"),
        (ReplicaMoved(1, ReplicaState.LOST, "\033[2J"), "replica 1 lost 3 min ago: \\x1b[2J"),
    ],
)
def test_one_that_does_not_serve_yet_says_so(moved: ReplicaMoved, words: str) -> None:
    assert lines(*FIRST, moved)[1][0] == words


def test_the_engine_that_an_attempt_is_at_work_on_says_its_phase() -> None:
    first, second = lines(*BOTH, PhaseEntered(STEP_8, Phase.PROBING, 1))
    assert (first[0].endswith("6 held"), second[0].endswith(", probing")) == (True, True)
    before = lines(*BOTH, PhaseEntered(STEP_8, Phase.VALIDATING))
    assert before == lines(*BOTH)


def test_weights_that_drifted_are_told_at_the_engine_that_holds_them() -> None:
    first, second = lines(*BOTH, LiveDrifted(OLD, ("b",), 1))
    assert first[1] is None
    assert second == (
        "replica 1 serving, generation 3, 3 inside, 1 held, live weights drifted",
        "bad",
    )
