"""`hotreload doctor` on the hosts of one engine: whether they can meet, and have the same."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hotreload.cli import main
from hotreload.cli.ops.doctor_checks import checkup, hosts
from hotreload.cli.ops.doctor_checks.advice import Facts
from hotreload.cli.ops.doctor_checks.checkup import check_jax, check_socket
from hotreload.cli.ops.doctor_checks.hosts import check_host_ports, check_hosts, compare_ranks, meet
from hotreload.cli.ops.machine import User
from hotreload.features import FEATURES
from hotreload.hosts.upstream.ranks import Ranks
from hotreload.setting import PORTS_AFTER
from hotreload.settings.load import load
from tests.waiting import PATIENCE

SOMEBODY = User("somebody", 4321, frozenset({4321}))
SOON = 0.5


def free_address() -> str:
    """Where rank 0 can listen on all ports of a meeting."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as found:
            port: int = found.getsockname()[1]
        try:
            for after in PORTS_AFTER:
                socket.create_server(("127.0.0.1", port + after)).close()
        except (OSError, OverflowError):
            continue
        return f"127.0.0.1:{port}"


def sets(address: str, rank: int = 0, *more: str) -> list[str]:
    where = (f"node_rank={rank}", f"dist_init_addr={address}")
    engine = ("nnodes=2", "tp=2", *where, "insecure_join=true")
    return [*(f"engine.{each}" for each in engine), *more]


def facts(address: str, rank: int = 0, *more: str) -> Facts:
    return Facts(load(None, sets(address, rank, *more), {}, FEATURES).settings, SOMEBODY, ())


# --- what one host sees by itself --------------------------------------------------------


def test_an_engine_on_one_host_has_nobody_to_meet(capsys: pytest.CaptureFixture[str]) -> None:
    alone = Facts(load(None, [], {}, FEATURES).settings, SOMEBODY, ())
    assert check_hosts(alone) == check_host_ports(alone) == hosts.ONE_HOST
    assert main(["doctor", "--meet", "1"]) == 78
    assert "--meet is for an engine over several hosts" in capsys.readouterr().err


def test_an_address_that_no_host_has_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*where: object) -> object:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    found = check_hosts(facts("nowhere:29500"))
    assert found.verdict == "fail"
    assert "nowhere cannot be resolved: Name or service not known" in found.says


def test_rank_0_must_have_the_address_that_it_is_met_at() -> None:
    found = check_hosts(facts("192.0.2.1:29500"))
    assert (found.verdict, "is no address of this host" in found.says) == ("fail", True)


@pytest.mark.parametrize("after", PORTS_AFTER)
def test_a_port_of_rank_0_that_somebody_has_is_named(after: int) -> None:
    address = free_address()
    port = int(address.partition(":")[2]) + after
    with socket.create_server(("127.0.0.1", port)):
        found = check_hosts(facts(address))
    assert found.verdict == "fail"
    assert found.says.startswith(f"127.0.0.1:{port} is taken by ")
    assert f"(pid {os.getpid()})" in found.says


def test_an_address_that_no_other_host_reaches_is_told() -> None:
    found = check_hosts(facts(free_address()))
    assert (found.verdict, "reached from this host alone" in found.says) == ("warn", True)


def test_a_follower_says_whether_rank_0_runs_and_that_is_no_fault() -> None:
    address = free_address()
    assert "and waits for nobody now" in check_hosts(facts(address, 1)).says
    with socket.create_server(("127.0.0.1", int(address.partition(":")[2]))):
        found = check_hosts(facts(address, 1))
    assert (found.verdict, found.says) == ("ok", f"rank 1 of 2: rank 0 can be reached at {address}")


def test_a_follower_that_reaches_no_host_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*where: object) -> object:
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", silent)
    found = check_hosts(facts("127.0.0.1:29500", 1))
    assert (found.verdict, "is not reached: timed out" in found.says) == ("warn", True)


def test_each_host_needs_its_share_of_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "ASK_JAX", "print('cpu', 2, 'CPU_0, CPU_1', sep='\\n')")
    asked = replace(facts("10.0.0.1:29500", 0, "engine.tp=4"), ask_jax=True)
    assert check_jax(asked).verdict == "ok"
    few = check_jax(replace(facts("10.0.0.1:29500", 0, "engine.tp=8"), ask_jax=True))
    assert few.says == "JAX finds CPU_0, CPU_1; [engine] tp divided by nnodes is 4"


@pytest.mark.parametrize(("rank", "unit"), [(0, "hotreload.socket"), (1, "hotreload")])
def test_who_makes_the_socket_of_a_rank_is_told(tmp_path: Path, rank: int, unit: str) -> None:
    closed = f"server.socket={tmp_path / 'run' / 's'}"
    (tmp_path / "run").mkdir(mode=0o700)
    found = check_socket(facts("10.0.0.1:29500", rank, closed))
    assert found.verdict == "warn"
    assert found.todo.startswith(f"systemctl start {unit}, or install -d -o somebody ")


def test_everybody_is_warned_of_what_the_ports_let_in() -> None:
    found = check_host_ports(facts("10.0.0.1:29500", 1))
    assert found.verdict == "warn"
    assert "ports 29500, 29505 and 29506 of 10.0.0.1 ask for no password" in found.says


def test_ports_that_want_a_secret_are_no_worry(tmp_path: Path) -> None:
    found = check_host_ports(facts("10.0.0.1:29500", 1, f"engine.join_secret_file={tmp_path}/s"))
    assert found.verdict == "ok"
    assert "want the join secret" in found.says


# --- the hosts together ------------------------------------------------------------------


async def met(
    address: str, *came: tuple[int, dict[str, str]], count: int = 2, within: float = PATIENCE
) -> list[list[str]]:
    asked = (meet(Ranks(rank, count, address), own, within) for rank, own in came)
    return await asyncio.gather(*asked)


async def test_hosts_that_have_the_same_find_nothing() -> None:
    assert await met(free_address(), (0, {"tp": "2"}), (1, {"tp": "2"})) == [[], []]


async def test_all_hosts_are_told_who_differs_in_what() -> None:
    came = ((0, {"tp": "2"}), (1, {"tp": "2"}), (2, {"tp": "4"}))
    said = ["rank 2: tp is 4 there and 2 here (here is rank 0)"]
    assert await met(free_address(), *came, count=3) == [said] * 3


async def test_rank_0_says_who_has_not_come() -> None:
    said = ["rank 1 has not come", "rank 2 has not come"]
    assert await met(free_address(), (0, {}), count=3, within=SOON) == [said]


@pytest.mark.parametrize(
    ("came", "said"),
    [
        ([1, 2, 2], ["rank 2 came more than once: two hosts have this node_rank"]),
        ([0, 1, 2], ["a host came as rank 0, of 3"]),
        ([1, 2, 3], ["a host came as rank 3, of 3"]),
        ([2, 1], []),
    ],
)
def test_who_came_by_a_wrong_number_is_told(came: list[int], said: list[str]) -> None:
    assert list(compare_ranks(Ranks(0, 3, ""), {}, [(rank, {}, ()) for rank in came])) == said


async def test_a_follower_alone_says_where_it_waited() -> None:
    address = free_address()
    said = [f"rank 0 was not met at {address} within 0.5 s"]
    assert await met(address, (1, {}), within=SOON) == [said]


async def test_a_port_that_is_closed_between_the_hosts_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = free_address()
    port = int(address.partition(":")[2]) + PORTS_AFTER[1]
    can_reach = hosts._can_reach

    async def through_a_wall(host: str, at: int) -> bool:
        return at != port and await can_reach(host, at)

    monkeypatch.setattr(hosts, "_can_reach", through_a_wall)
    said = [f"rank 1 does not reach port {port} of rank 0"]
    assert await met(address, (0, {}), (1, {})) == [said, said]


async def test_rank_0_says_that_its_port_is_taken() -> None:
    address = free_address()
    with socket.create_server(("127.0.0.1", int(address.partition(":")[2]))):
        ((told,),) = await met(address, (0, {}))
    assert told.startswith(f"rank 0 cannot listen on {address} and the ports after it")


async def test_a_daemon_in_place_of_rank_0_is_told() -> None:
    address = free_address()

    async def another(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\0\0\x18\4\0\0\0\0\0\n")
        writer.close()

    async with await asyncio.start_server(another, "127.0.0.1", int(address.partition(":")[2])):
        ((told,),) = await met(address, (1, {}))
    assert told == f"it is no `hotreload doctor --meet` that listens at {address}"


def test_two_processes_meet_and_say_in_what_they_differ(tmp_path: Path) -> None:
    address = free_address()
    own = [f"state.directory={tmp_path}", f"server.socket={tmp_path / 's'}", "metrics.address=''"]
    asked = [
        sets(address, rank, *own, f"engine.dtype={dtype}")
        for rank, dtype in ((0, "float32"), (1, "bfloat16"))
    ]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "hotreload.cli", "doctor", "--json", "--meet", str(PATIENCE)]
            + [f"--set={each}" for each in given],
            stdout=subprocess.PIPE,
            text=True,
        )
        for given in asked
    ]
    for process in running:
        told = json.loads(process.communicate(timeout=PATIENCE)[0])["meeting"]
        assert told["verdict"] == "fail"
        assert told["says"] == "rank 1: dtype is bfloat16 there and float32 here (here is rank 0)"
        assert process.returncode == 1
