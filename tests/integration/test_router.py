"""The real sglang-router and smg before two daemons, which get checkpoints, and one a restart.

By day their engines are of words: the routers ask the daemons, and never see an engine.
"""

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import quantiles
from typing import Any

import httpx
import pytest

from tests.features.gateway.scrape import read
from tests.integration.endpoint_picker import STALE, EndpointPicker
from tests.integration.openai_clients import free_address
from tests.integration.process import OF_WORDS, REAL, START_SECONDS, Process
from tests.integration.running import Load, not_said_by
from tests.waiting import TICK, look_until, turn_until

FLIPS = 10
LOOKS_EVERY = 1
"""Seconds after which the router asks each daemon for its health."""
TRIES_AGAIN = 1
"""Seconds after which it tries a daemon again whose breaker opened, because it was restarted."""
ROUTERS = (("sglang_router.launch_router",), ("smg", "launch"))
"""SGLang's router, and its successor: two programs that take the same flags."""


class Router:
    """The program, and what it tells of the daemons behind it."""

    def __init__(self, folder: Path, program: Sequence[str], *workers: str) -> None:
        self.address, self._metrics = free_address(), free_address()
        host, port = self.address.split(":")
        _, metrics_port = self._metrics.split(":")
        self._log = folder / f"{program[0]}.log"
        self._command = [
            *(sys.executable, "-m", *program),
            *("--worker-urls", *workers),
            *("--host", host, "--port", port),
            *("--prometheus-host", host, "--prometheus-port", metrics_port),
            # A daemon that stops refuses at once: the usual five tries may all go to it.
            *("--retry-max-retries", "10"),
            *("--policy", "round_robin", "--health-check-interval-secs", str(LOOKS_EVERY)),
            *("--cb-timeout-duration-secs", str(TRIES_AGAIN)),
        ]

    @contextmanager
    def running(self) -> Iterator[None]:
        with (
            self._log.open("w") as log,
            subprocess.Popen(self._command, stdout=log, stderr=log) as child,
        ):
            self._child = child
            try:
                yield
            finally:
                child.kill()  # else smg waits five seconds for whoever it balances

    def client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=f"http://{self.address}", timeout=START_SECONDS)

    def until_all_are_well(self) -> None:
        def is_so() -> bool:
            assert self._child.poll() is None, self._log.read_text()[-3000:]
            with suppress(httpx.HTTPError):
                ready = httpx.get(f"http://{self.address}/readiness").json()
                return bool(ready.get("healthy_workers") == 2)
            return False

        look_until(is_so, lambda: self._log.read_text()[-3000:], seconds=START_SECONDS)

    def models(self) -> set[str]:
        listed: Any = httpx.get(f"http://{self.address}/v1/models").json()
        return {model["id"] for model in listed["data"]}

    def known_weights(self) -> set[tuple[str, str]]:
        """What smg takes the daemons for, and the version of the weights that it believes in."""
        workers: Any = httpx.get(f"http://{self.address}/workers").json()["workers"]
        return {(each["runtime_type"], each["labels"]["weight_version"]) for each in workers}

    def opened(self) -> set[str]:
        """The daemons whose circuit breaker has opened."""
        page = httpx.get(f"http://{self._metrics}/metrics").text
        moves = re.findall(r"^smg_worker_cb_transitions_total\{(.*)\} [1-9]", page, re.MULTILINE)
        assert "smg_worker_cb" in page
        return {re.findall('worker="([^"]*)"', each)[0] for each in moves if 'to="open"' in each}


@pytest.fixture(
    params=[OF_WORDS, pytest.param(REAL, marks=[pytest.mark.at_night, pytest.mark.real_engine])]
)
def daemons(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[Process]]:
    """Two, each with its own checkpoints and over TCP."""
    both = [start_router(tmp_path / name, request.param) for name in ("one", "other")]
    with both[0].begun(), both[1].running():
        both[0].until(lambda: both[0].get("/readyz"), START_SECONDS)
        yield both


def start_router(folder: Path, command: str) -> Process:
    folder.mkdir()
    named = ("server.model_name=tiny", f"server.tcp={free_address()}")
    process = Process(folder, *named, command=command)
    process.drop(1)
    return process


def address_of(process: Process) -> str:
    (named,) = (each for each in process.sets if each.startswith("server.tcp="))
    return f"http://{named.partition('=')[2]}"


async def test_nobody_fails_through_ten_flips_and_a_restart_and_no_breaker_opens(
    daemons: list[Process], tmp_path: Path
) -> None:
    one, other = daemons
    routers = [Router(tmp_path, program, *map(address_of, daemons)) for program in ROUTERS]
    loads = [Load(router, 4) for router in routers]
    picker = EndpointPicker(*map(address_of, daemons))
    with ExitStack() as lives:  # the second one of a daemon ends when nobody asks any more
        for router in routers:
            lives.enter_context(router.running())
        await asyncio.to_thread(until_all_are_well, routers)
        assert [router.models() for router in routers] == [{"tiny"}, {"tiny"}]
        async with loads[0].on(), loads[1].on():
            async with picker.on():
                await through_flips(daemons, loads)
            assert [router.opened() for router in routers] == [set(), set()]
            _, smg = routers
            assert smg.known_weights() == {("sglang", "1")}  # of when it first looked
            assert await asyncio.to_thread(one.stop) == 0
            await more_answers(loads)
            await asyncio.to_thread(lives.enter_context, one.running())
            await asyncio.to_thread(until_all_are_well, routers)
            await more_answers(loads)
            await turn_until(lambda: has_answered(one), pause=TICK)
        assert all(address_of(other) not in router.opened() for router in routers)
    assert [load.failures for load in loads] == [[], []]
    answers = [answer for load in loads for answer in load.answers]
    assert not_said_by(answers, labels_of(daemons)) == []
    assert picker.failures == []
    *_, most_ages = quantiles(picker.ages, n=4)  # the oldest says how busy the machine is
    assert most_ages <= STALE


def until_all_are_well(routers: list[Router]) -> None:
    for router in routers:
        router.until_all_are_well()


async def through_flips(daemons: list[Process], loads: list[Load]) -> None:
    for number in range(2, 2 + FLIPS):
        for process in daemons:
            process.drop(number)
        for process in daemons:
            await asyncio.to_thread(process.live, f"step_{number}")
        await more_answers(loads)


async def more_answers(loads: list[Load]) -> None:
    enough = [len(load.answers) + 2 * load.clients for load in loads]

    def are_there() -> bool:
        pairs = zip(loads, enough, strict=True)
        return all(len(load.answers) > many or load.failures for load, many in pairs)

    await turn_until(are_there, pause=TICK)


def labels_of(daemons: list[Process]) -> dict[int, str]:
    """Which checkpoint each generation was made of; both were told of the same ones."""
    lines = [line for process in daemons for line in process.said("generation.live")]
    return {line["generation"]: line["label"] for line in lines}


def has_answered(process: Process) -> bool:
    """True once somebody was answered in its present life."""
    page = read(httpx.get(f"{address_of(process)}/metrics").text)
    return page["e2e_request_latency_seconds_count"] > 0
