"""Engines that die: noticed within a second, told to everybody, and nobody is signalled."""

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
import pytest_asyncio

from hotreload.engine.upstream.thread import scheduler
from hotreload.errors import EngineLost
from tests.engine import real
from tests.waiting import PATIENCE, turn_until

pytestmark = [pytest.mark.asyncio(loop_scope="function"), pytest.mark.real_engine]

Engine = Any


def fail(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("a fault of the engine's own")


def break_scheduler(engine: Engine) -> None:
    engine._scheduler.scheduler.get_next_batch_to_run = fail


def break_forward(engine: Engine) -> None:
    engine._scheduler.scheduler.tp_worker.worker.forward_batch_generation = fail


def break_answers(engine: Engine) -> None:
    mapping = engine._parts.tokenizer_manager._result_dispatcher._mapping
    mapping[0] = (mapping[0][0], fail)


BREAKS = [break_scheduler, break_forward, break_answers]


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    sent: list[Any] = []
    monkeypatch.setattr(psutil.Process, "send_signal", lambda *args: sent.append(args))
    monkeypatch.setattr(os, "kill", lambda *args: sent.append(args))
    return sent


@pytest_asyncio.fixture
async def engine(tmp_path: Path) -> AsyncIterator[Engine]:
    folder = real.Folders(tmp_path).folder(1)
    async with real.engine_of(folder, tmp_path / "spool") as engine:
        yield engine


@pytest.mark.parametrize("break_it", BREAKS)
async def test_a_dying_part_is_noticed_within_a_second_and_signals_nobody(
    engine: Engine,
    break_it: Callable[[Engine], None],
    signals: list[Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    await real.ask(engine)
    began = time.monotonic()
    await real.ask(engine)
    died = asyncio.create_task(engine.wait_until_dead())
    break_it(engine)
    started = time.monotonic()
    with pytest.raises(EngineLost):
        await real.ask(engine)
    with pytest.raises(EngineLost):
        await died
    assert time.monotonic() - started < max(1, 20 * (started - began))  # on a slow machine
    with pytest.raises(EngineLost):
        await real.ask(engine)
    with pytest.raises(EngineLost):
        await engine.switch.scrub()
    assert signals == []
    if break_it is break_scheduler:  # upstream itself logs where the others broke
        assert "in fail\n" in caplog.text


async def read_and_break(engine: Engine) -> None:
    request = {"text": "Who serves?", "sampling_params": real.ENDLESS, "stream": True}
    async for _ in engine.answers.generate(request):
        break_forward(engine)


async def test_a_forward_thread_that_dies_in_the_middle_of_an_answer_leaves_nothing_open(
    tmp_path: Path, signals: list[Any]
) -> None:
    folder = real.Folders(tmp_path).folder(1)
    async with real.engine_of(folder, tmp_path / "spool") as engine:
        scheduler = engine._parts.running_scheduler
        with pytest.raises(EngineLost):
            await read_and_break(engine)
        socket = engine._parts.engine.send_to_rpc
    assert scheduler.join(0)
    assert socket.closed
    assert signals == []


def hang_step(engine: Engine, hang: Callable[..., Any]) -> None:
    engine._scheduler.scheduler.run_batch = hang


def hang_before_a_step(engine: Engine, hang: Callable[..., Any]) -> None:
    engine._scheduler.scheduler.get_next_batch_to_run = hang


def hang_last_result(engine: Engine, hang: Callable[..., Any]) -> None:
    """The scheduler has let go of its last batch, and waits for what the device makes of it."""
    engine._scheduler.scheduler.tp_worker.worker.forward_batch_generation = hang


@pytest.mark.parametrize("hang_it", [hang_step, hang_before_a_step, hang_last_result])
async def test_an_engine_that_hangs_counts_as_dead(
    tmp_path: Path, signals: list[Any], hang_it: Callable[[Engine, Any], None]
) -> None:
    folder, release = real.Folders(tmp_path).folder(1), threading.Event()
    args = {"watchdog_timeout": 0.5}
    async with real.engine_of(folder, tmp_path / "spool", args=args) as engine:
        hang_it(engine, lambda *args, **kwargs: release.wait() and fail())
        asking = asyncio.create_task(real.ask(engine, max_new_tokens=1))
        with pytest.raises(EngineLost, match=r"longer than 0\.5 s"):
            await asyncio.wait_for(engine.wait_until_dead(), PATIENCE)
        with pytest.raises(EngineLost):
            await asking
        release.set()
    assert signals == []


async def test_an_idle_loop_that_no_longer_turns_counts_as_hanging(
    tmp_path: Path, signals: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "SILENT_TURN_SECONDS", 1.5)
    folder, release = real.Folders(tmp_path).folder(1), threading.Event()
    args = {"watchdog_timeout": 0.5}
    async with real.engine_of(folder, tmp_path / "spool", args=args) as engine:
        # One that still has a last result to collect would hang as a step, and not as an idle one.
        idle = engine._scheduler.has_nothing_to_do
        await turn_until(lambda: idle() and engine.is_turning(1.5))
        engine._scheduler.scheduler.recv_requests = lambda: release.wait() and fail()
        with pytest.raises(EngineLost, match=r"longer than 0\.5 s"):
            await asyncio.wait_for(engine.wait_until_dead(), PATIENCE)
        assert not engine.is_turning(1.5)
        release.set()
    assert signals == []


async def test_one_that_is_given_up_tells_everybody_who_waits_for_it(engine: Engine) -> None:
    # Compiled before: on a busy machine that takes longer than a thread is waited for at the end.
    await real.ask(engine, max_new_tokens=2, ignore_eos=True)
    asking = asyncio.create_task(real.ask(engine, max_new_tokens=200, ignore_eos=True))
    await turn_until(lambda: engine.answers.under_way > 0)
    engine.lose("nobody knows which weights are live")
    with pytest.raises(EngineLost, match="nobody knows"):
        await asking
    with pytest.raises(EngineLost, match="nobody knows"):
        await engine.wait_until_dead()


async def test_an_exchange_that_breaks_off_leaves_nobody_in_doubt(engine: Engine) -> None:
    staged = engine.weights.live
    engine._scheduler.scheduler.req_to_token_pool.clear = fail
    with pytest.raises(EngineLost, match="the exchange broke off"):
        await engine.switch.exchange(staged)
    with pytest.raises(EngineLost):
        await engine.wait_until_dead()
