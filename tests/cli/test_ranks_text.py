"""What `hotreload status` and `hotreload top` say on the hosts of one engine."""

from datetime import UTC, datetime
from typing import Any

import pytest

from hotreload.cli.client.texts import status_text
from hotreload.cli.client.which_daemon import until_ready
from hotreload.events import ModeChosen, RevisionWanted, SourceScanned
from hotreload.picture.picture import Rank
from hotreload.types import Mode
from tests.observe.test_status import BOOTED, after
from tests.observe.things import STEP_8

NOW = datetime.now(UTC)
LEADER = Rank(0, 2, "tpu-0:8000")
FOLLOWER = Rank(1, 2, "tpu-0:8000")
TOLD = (ModeChosen(Mode.OVERLAP), RevisionWanted(STEP_8), SourceScanned("rescan", "away"))


def said_by(rank: Rank | None) -> dict[str, Any]:
    return after(*BOOTED, *TOLD, rank=rank).snapshot()


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
