"""What `hotreload status` and `hotreload top` say on the hosts of one engine."""

from datetime import UTC, datetime
from typing import Any

import pytest

from hotreload.cli.client.status_text import status_text
from hotreload.cli.client.top_frame import frame, write_line
from hotreload.cli.client.wait import until_ready
from hotreload.events import ModeChosen, RevisionWanted, SourceScanned
from hotreload.picture.picture import Rank
from hotreload.types import Mode
from tests.observe.test_status import BOOTED, after
from tests.observe.things import STEP_8, generation

NOW = datetime.now(UTC)
LEADER = Rank(0, 2, "tpu-0:8000")
FOLLOWER = Rank(1, 2, "tpu-0:8000")
TOLD = (ModeChosen(Mode.OVERLAP), RevisionWanted(STEP_8), SourceScanned("rescan", "away"))


def said_by(rank: Rank | None) -> dict[str, Any]:
    return after(*BOOTED, *TOLD, rank=rank).snapshot()


def rows(rank: Rank | None) -> dict[str, str]:
    lines = [line for line in status_text(said_by(rank), NOW).splitlines()[2:] if line[0] != " "]
    return {line[:13].strip(): line[13:].strip() for line in lines}


def top(rank: Rank | None) -> list[str]:
    lines = frame(said_by(rank), (), width=120, height=24, now=NOW)
    return [write_line(line, colour=False) for line in lines]


def test_a_rank_that_follows_says_so_and_leaves_out_what_rank_0_alone_has() -> None:
    said = rows(FOLLOWER)
    assert said["state"] == "following"
    assert said["rank"] == "1 of 2; rank 0, met at tpu-0:8000, decides and answers"
    assert said["generation"] == str(generation().number)
    assert said["mode"] == "overlap"
    assert said.keys().isdisjoint({"wanted", "source", "gate", "answering"})


def test_rank_0_says_that_it_is_and_all_that_one_host_says() -> None:
    said = rows(LEADER)
    assert said["rank"] == "0 of 2, decides and answers"
    assert {name: value for name, value in said.items() if name != "rank"} == rows(None)
    assert {"wanted", "source", "gate"} < said.keys()


def test_top_of_a_rank_that_follows_shows_its_weights_and_no_gate() -> None:
    summary, first, second, third, *rest = top(FOLLOWER)
    assert summary == "holds generation 3, step-7; rank 0 answers"
    assert first.startswith("following  step-7")
    assert second == "fingerprint print-3   mode overlap"
    assert third == "rank 1 of 2; rank 0, met at tpu-0:8000, decides and answers"
    assert [line for line in rest if line] == ["q quits"]


def test_top_of_rank_0_is_that_of_one_host_and_a_line() -> None:
    assert [line for line in top(LEADER) if line not in top(None)] == [
        "rank 0 of 2, decides and answers"
    ]


def test_who_waits_until_it_is_ready_need_not_wait_for_a_rank_that_follows() -> None:
    class Daemon:
        def get(self, path: str, within: float) -> dict[str, Any]:
            return said_by(FOLLOWER)

    assert until_ready(Daemon(), within=0.0)["state"] == "following"


def test_a_name_of_rank_0_that_would_drive_the_terminal_does_not() -> None:
    said = after(*BOOTED, rank=Rank(1, 2, "tpu\x1b[2J:1")).snapshot()
    assert "\x1b[2J" not in status_text(said, NOW)


@pytest.mark.parametrize("rank", [None, LEADER, FOLLOWER])
def test_a_daemon_that_boots_says_only_that(rank: Rank | None) -> None:
    said = after(rank=rank).snapshot()
    assert said["state"] == "booting"
    assert status_text(said, NOW).splitlines()[2].startswith("state")
