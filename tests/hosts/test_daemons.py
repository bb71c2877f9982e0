"""Two daemons with one engine: what goes live goes live on both, or on none.

The tests down to `a life each` share one of both. What the hosts remember goes on through all.
"""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
import zmq

from hotreload.errors import HotReloadError
from hotreload.life.saved.state_json import to_json
from tests.hosts.daemons import LOST, Daemons
from tests.integration.deaths import ledger_of
from tests.integration.process import Process
from tests.integration.running import Load, not_said_by, words
from tests.waiting import PATIENCE, TICK, turn_until

pytestmark = pytest.mark.real_engine


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Daemons:
    both = Daemons(tmp_path_factory.mktemp("ranks"), "source.settle=0")
    both.drop()
    return both


# --- one life --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def running(both: Daemons) -> Iterator[Daemons]:
    with both.living():
        yield both


def test_both_are_ready_and_say_that_the_same_weights_answer(running: Daemons) -> None:
    statuses = [process.get("/status") for process in running.ranks]
    assert [status["rank"]["own"] for status in statuses] == [0, 1]
    assert [status["state"] for status in statuses] == ["serving", "following"]
    for name in ("generation", "revision", "label", "fingerprint"):
        assert statuses[0][name] == statuses[1][name] is not None, name
    assert statuses[0]["label"] == "step_1"
    assert running.leader.ask()["text"] == words(1)


@pytest.mark.parametrize("route", ["/generate", "/admin/reload_weights", "/admin/pin"])
def test_who_asks_the_follower_is_told_to_ask_rank_0(running: Daemons, route: str) -> None:
    body = {"text": "Who serves?"} if route == "/generate" else {}
    with pytest.raises(HotReloadError, match=r"rank 0, on 127\.0\.0\.1") as refused:
        running.follower.daemon.ask("POST", route, body)
    assert refused.value.reason.code == "not_rank_0"


async def test_the_follower_shows_its_rank_to_who_looks(running: Daemons) -> None:
    async with running.follower.client() as client:
        page = (await client.get("/metrics")).text
    assert "hotreload_rank 1.0" in page
    assert "hotreload_generation 1.0" in page

    def status() -> str:
        command = [sys.executable, "-m", "hotreload.cli", "status"]
        named = f"--socket={running.follower.socket}"
        return subprocess.run([*command, named], capture_output=True, text=True, check=True).stdout

    told = await asyncio.to_thread(status)
    assert "1 of 2; rank 0, met at 127.0.0.1:" in told
    assert "step_1" in told


FLIPS = 10


async def test_ten_flips_under_load_fail_nobody_and_both_ledgers_say_the_same(
    running: Daemons,
) -> None:
    # Ranks that wait for each other take a core: between answers they rest.
    async with Load(running.leader, 4, pause=0.3).on() as load:
        for _ in range(FLIPS):
            same = await asyncio.to_thread(running.until_same, running.drop())
            await turn_until(lambda: same.number in dict(load.answers), pause=TICK)  # noqa: B023
    assert load.failures == []
    assert not_said_by(load.answers, running.labels()) == []


def test_what_a_rank_has_not_got_goes_live_nowhere_until_it_has(running: Daemons) -> None:
    running.newest += 1
    running.leader.drop(running.newest)
    told = running.told_against(running.newest, "rank 1: ")
    assert told["outcome"] == "postponed"
    running.follower.drop(running.newest)
    running.until_same(running.newest)


def test_what_a_rank_has_damaged_goes_live_nowhere_and_a_whole_one_does(running: Daemons) -> None:
    running.newest += 1
    running.follower.drop(running.newest, "truncated")
    running.leader.drop(running.newest)
    running.told_against(running.newest, "rank 1: ")
    running.until_same(running.drop())


def test_nobody_comes_to_the_store_once_all_ranks_have(running: Daemons) -> None:
    host, _, port = running.address.rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 5)


def test_who_does_not_know_the_secret_hears_no_turn_of_rank_0(running: Daemons) -> None:
    host, _, port = running.address.rpartition(":")
    with zmq.Context() as context, context.socket(zmq.SUB) as plain, context.socket(zmq.SUB) as sub:
        sub.curve_publickey, sub.curve_secretkey = zmq.curve_keypair()
        sub.curve_serverkey = zmq.curve_keypair()[0]
        for each in (plain, sub):
            each.linger = 0
            each.subscribe(b"")
            each.connect(f"tcp://{host}:{int(port) + 5}")
        for _ in range(3):
            running.leader.ask()  # each token is a turn
        assert [each.poll(500) for each in (plain, sub)] == [0, 0]


def test_a_follower_that_is_told_to_stop_exits_0_and_rank_0_names_it_and_exits_70(
    running: Daemons,
) -> None:
    running.follower.child.send_signal(signal.SIGTERM)
    assert running.follower.child.wait(PATIENCE) == 0
    assert running.leader.child.wait(PATIENCE) == LOST
    (lost,) = running.leader.said("daemon.engine_lost")
    assert "rank 1 leaves: it was asked to stop" in lost["cause"]


# --- a life each -----------------------------------------------------------------------------


@pytest.fixture
def lived(running: Daemons) -> Daemons:
    """They remember what was live, and are not running."""
    if running.leader.child.poll() is None:
        running.stop()
    return running


def make_older(process: Process) -> None:
    """Have its state file know nothing of the last two generations."""
    ledger = ledger_of(process)
    newest = ledger.generations[-1].number
    while len(ledger.generations) > 1 and ledger.generations[-1].number > newest - 2:
        ledger.generations.pop()
    ledger.numbers_given = ledger.generations[-1].number
    (process.folder / "state" / "state.json").write_bytes(to_json(ledger))
    (process.folder / "state" / "number").unlink()


def test_a_follower_with_an_older_ledger_says_the_same_again_and_dies_over_the_next(
    lived: Daemons,
) -> None:
    """The next life shows what its death left, before it had written down what was live."""
    make_older(lived.follower)
    lived.killed_at(1, "committed")


SOON = ("reload.fetch_timeout=2", "reload.validate_timeout=2", "reload.stage_timeout=4")
"""A rank does all three of it in its staging."""


@pytest.mark.at_night
def test_a_rank_that_is_too_slow_is_named_and_not_waited_for(lived: Daemons) -> None:
    """It hangs until rank 0 is killed; the next life has it live."""
    with lived.again(follower=lived.armed("staging=hang"), sets=SOON):
        told = lived.told_against(lived.drop(), "rank 1 did not stage in time")
        assert told["outcome"] == "postponed"
        lived.leader.child.kill()
        lived.until_ended_by(0)


def test_rank_0_with_an_older_ledger_gives_no_number_again_and_stops_with_the_follower(
    lived: Daemons,
) -> None:
    make_older(lived.leader)
    with lived.again():
        lived.stop()
