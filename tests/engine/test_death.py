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

from hotreload.engine.upstream import parts, scheduler
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


def break_detokenizer(engine: Engine) -> None:
    engine._parts.detokenizer._request_dispatcher._mapping[0] = (object, fail)


def break_answers(engine: Engine) -> None:
    mapping = engine._parts.tokenizer_manager._result_dispatcher._mapping
    mapping[0] = (mapping[0][0], fail)


BREAKS = [break_scheduler, break_forward, break_detokenizer, break_answers]


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
    engine: Engine, break_it: Callable[[Engine], None], signals: list[Any]
) -> None:
    await real.ask(engine)
    began = time.monotonic()
    await real.ask(engine)
    died = asyncio.create_task(engine.died())
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
        await engine.scrub()
    assert signals == []


async def read_and_break(engine: Engine) -> None:
    request = {"text": "Who serves?", "sampling_params": real.ENDLESS, "stream": True}
    async for _ in engine.generate(request):
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


def hang_detokenizer(engine: Engine, hang: Callable[..., Any]) -> None:
    mapping = engine._parts.detokenizer._request_dispatcher._mapping
    mapping[0] = (mapping[0][0], hang)


def hang_detokenizer_for_good(engine: Engine, hang: Callable[..., Any]) -> None:
    """It is sent answers, and no longer asks for any."""
    engine._parts.detokenizer.recv_from_scheduler.recv_pyobj = hang


def hang_loop(engine: Engine, hang: Callable[..., Any]) -> None:
    """Answers are there, and the loop that should receive them is not told."""
    never = asyncio.get_running_loop().create_future()
    engine._parts.tokenizer_manager.recv_from_detokenizer.recv_pyobj = lambda: never


@pytest.mark.parametrize("hang_it", [hang_detokenizer, hang_detokenizer_for_good, hang_loop])
async def test_a_part_that_keeps_answers_counts_as_dead_though_the_scheduler_is_well(
    tmp_path: Path,
    signals: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    hang_it: Callable[[Engine, Any], None],
) -> None:
    monkeypatch.setattr(parts, "MESSAGE_SECONDS", 0.5)  # a step may compile, a message does not
    folder, release = real.Folders(tmp_path).folder(1), threading.Event()
    async with real.engine_of(folder, tmp_path / "spool") as engine:
        await real.ask(engine)
        hang_it(engine, lambda *args, **kwargs: release.wait() and fail())
        asking = [asyncio.create_task(real.ask(engine)) for _ in range(2)]
        with pytest.raises(EngineLost, match=r"longer than 0\.5 s for one message"):
            await asyncio.wait_for(engine.died(), PATIENCE)
        # Those whose message was the last to be received are answered; nobody waits for ever.
        for each in await asyncio.gather(*asking, return_exceptions=True):
            assert isinstance(each, EngineLost | dict)
        with pytest.raises(EngineLost):
            await real.ask(engine)
        release.set()
    assert signals == []


async def test_a_detokenizer_that_ends_without_a_word_is_noticed(engine: Engine) -> None:
    def end(*args: Any) -> None:
        raise scheduler.SchedulerStopped

    mapping = engine._parts.detokenizer._request_dispatcher._mapping
    mapping[0] = (mapping[0][0], end)
    with pytest.raises(EngineLost, match="detokenizer thread has ended"):
        await asyncio.wait_for(real.ask(engine), PATIENCE)


async def test_an_engine_that_rests_or_answers_for_long_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "MESSAGE_SECONDS", 0.5)
    async with real.engine_of(real.Folders(tmp_path).folder(1), tmp_path / "spool") as engine:
        sampling: dict[str, Any] = real.ENDLESS
        await real.ask(engine, **sampling)
        await asyncio.sleep(1)
        assert (await real.ask(engine))["text"] == "served by step 1"


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
            await asyncio.wait_for(engine.died(), PATIENCE)
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
            await asyncio.wait_for(engine.died(), PATIENCE)
        assert not engine.is_turning(1.5)
        release.set()
    assert signals == []


async def test_one_that_is_given_up_tells_everybody_who_waits_for_it(engine: Engine) -> None:
    asking = asyncio.create_task(real.ask(engine, max_new_tokens=200, ignore_eos=True))
    await turn_until(lambda: engine.under_way > 0)
    engine.lose("nobody knows which weights are live")
    with pytest.raises(EngineLost, match="nobody knows"):
        await asking
    with pytest.raises(EngineLost, match="nobody knows"):
        await engine.died()


async def test_an_exchange_that_breaks_off_leaves_nobody_in_doubt(engine: Engine) -> None:
    staged = engine.live
    engine._scheduler.scheduler.req_to_token_pool.clear = fail
    with pytest.raises(EngineLost, match="the exchange broke off"):
        await engine.exchange(staged)
    with pytest.raises(EngineLost):
        await engine.died()
