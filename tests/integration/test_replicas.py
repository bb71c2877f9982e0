"""Two engines in one daemon: rolling reloads under load, one that says no, one that dies."""

from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hotreload.engine.sglang import SglangEngine
from hotreload.errors import ProbeFailed
from hotreload.events import Event, GateChanged, ReplicaMoved
from hotreload.types import GateState, Mode, Outcome, ReplicaState
from tests.engine.real import device_bytes
from tests.features.gateway.scrape import read
from tests.integration.running import Load, Running, mixed, post
from tests.waiting import turn_until

pytestmark = [pytest.mark.real_engine, pytest.mark.asyncio(loop_scope="module")]

WAYS = [
    pytest.param((Mode.DRAIN, "rolling"), marks=pytest.mark.at_night),
    (Mode.OVERLAP, "together"),
]

RELOADS = 3


def engine(running: Running, index: int) -> Any:
    """The real one, for what only a test looks at."""
    found = {each.index: each.engine for each in running.daemon.slot.replicas()}[index]
    assert isinstance(found, SglangEngine)
    return found


async def all_serve(running: Running, engines: int = 2, times: int = 1) -> None:
    """Until each engine beside the first has joined so often."""
    for index in range(1, engines):
        joined = ReplicaMoved(index, ReplicaState.SERVING)
        await running.until(partial(_have_happened, running, joined, times))


def _have_happened(running: Running, event: Event, times: int) -> bool:
    return running.happened.count(event) >= times


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=WAYS, ids="-".join)
async def running(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Running]:
    mode, rollout = request.param
    folder = tmp_path_factory.mktemp("daemon")
    sets = ("engine.replicas=2", f"reload.mode={mode}", f"reload.rollout={rollout}")
    running = Running(folder, *sets, "reload.sets=3")
    running.drop(1)
    async with running.serving():
        await all_serve(running)
        yield running
    assert running.exit_code == 0


async def test_reloads_under_load_reach_both_and_nobody_waits_or_fails(running: Running) -> None:
    first = running.live.number
    began = len(running.happened)
    read = [engine(running, index).weights.loaders for index in range(2)]
    async with Load(running, clients=8).on() as load:
        for number in range(2, 2 + RELOADS):
            attempt = await running.attempted(running.drop(number))
            assert attempt.outcome is Outcome.LIVE, attempt
    assert load.failures == []
    assert mixed(load.answers, running.generations) == []
    assert {number for number, _ in load.answers} >= set(range(first, first + RELOADS))
    held = [each.held for each in running.happened[began:] if isinstance(each, GateChanged)]
    assert set(held) <= {0}
    live = running.daemon.ledger.live
    assert live is not None
    for index in range(2):
        assert engine(running, index).weights.live.fingerprint == live.fingerprint
        assert await engine(running, index).weights.checksums() == live.leaves
    assert read[0] is not read[1]


async def test_what_the_second_says_no_to_is_put_back_on_the_first(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = running.daemon.ledger.live
    assert before is not None

    async def no(*staged: Any) -> None:
        raise ProbeFailed("it talks nonsense on this device")

    with monkeypatch.context() as broken:
        for step in ("prove", "probe"):
            broken.setattr(engine(running, 1).unseen, step, no)
        async with Load(running).on() as load:
            attempt = await running.attempted(running.drop(20))
    assert (attempt.outcome, attempt.generation) == (Outcome.REJECTED, None)
    assert load.failures == []
    assert mixed(load.answers, running.generations) == []
    assert running.daemon.ledger.live is before
    for index in range(2):
        assert engine(running, index).weights.live.fingerprint == before.fingerprint
    assert (await running.attempted(running.drop(21))).outcome is Outcome.LIVE


async def test_noise_reaches_both_and_a_rollback_too(running: Running) -> None:
    before = running.live.fingerprint
    for route in ("perturb_weights", "rollback"):
        answer = await post(running, route)
        assert answer.status_code == 200, answer.text
        live = running.live.fingerprint
        assert (live == before) == (route == "rollback")
        for index in range(2):
            assert engine(running, index).weights.live.fingerprint == live


async def test_one_that_dies_is_started_again_while_the_other_answers(running: Running) -> None:
    died = engine(running, 1)
    async with Load(running, clients=8).on() as load:
        died._parts.running_scheduler.scheduler.get_next_batch_to_run = None
        await all_serve(running, times=2)
        attempt = await running.attempted(running.drop(30))
        assert attempt.outcome is Outcome.LIVE
    # Those that it answered already were told the truth; all others another engine answered.
    assert all("503" in each or "without its end" in each for each in load.failures)
    assert mixed(load.answers, running.generations) == []
    lost = [each for each in running.happened if isinstance(each, ReplicaMoved) and each.reason]
    assert [each.state for each in lost] == [ReplicaState.LOST]
    assert "thread" in (lost[0].reason or "")
    assert engine(running, 1) is not died
    assert (
        engine(running, 1).weights.live.fingerprint == engine(running, 0).weights.live.fingerprint
    )
    assert all(gate.state is GateState.OPEN for gate in running.daemon.entrance.gates)
    await is_shown(running)


async def is_shown(running: Running) -> None:
    """That the status and the metrics tell of each, and of all together."""
    async with running.client() as client:
        status = (await client.get("/status")).json()
        page = (await client.get("/metrics")).text
    assert (status["state"], status["generation"]) == ("serving", running.live.number)
    for replica in status["replicas"]:
        assert (replica["state"], replica["reason"]) == ("serving", None)
        assert replica["generation"] == running.live.number
    assert [each["restarts"] for each in status["replicas"]] == [0, 1]
    assert "hotreload_replicas_serving 2.0" in page
    assert 'hotreload_replica_restarts_total{replica="1"} 1.0' in page
    pages = sum(each.facts()["max_total_tokens"] for each in running.daemon.slot.engines())
    scrape = running.daemon.status.page_for_gateways
    await turn_until(lambda: read(scrape()).get("num_pages") == pages)


async def test_in_the_end_nothing_of_it_is_left(tmp_path: Path) -> None:
    before = await device_bytes()
    running = Running(tmp_path, "engine.replicas=2")
    running.drop(1)
    async with running.serving():
        pass  # told to stop while the second engine is started
    assert running.exit_code == 0
    assert await device_bytes() <= before
