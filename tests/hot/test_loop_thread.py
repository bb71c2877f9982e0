"""Coroutines run in a thread of their own, for callers who have no loop, or one that runs."""

import asyncio
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from hotreload.errors import BadRequest, NotServing
from hotreload.hot import loop_thread
from hotreload.hot.loop_thread import LoopThread


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.close()


@pytest.fixture
def usual_interrupt() -> Iterator[None]:
    """A program that a shell began in the background ignores interrupts, and so do its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_a_forks_child_is_told_and_can_end(loop: LoopThread) -> None:
    """Its copy of the thread does not run: whoever waited for it would wait for ever."""
    read, write = os.pipe()
    with warnings.catch_warnings(action="ignore"):  # of forks of what has threads
        child = os.fork()
    if child == 0:
        try:
            loop.run(double(4))
        except BadRequest as told:
            os.write(write, str(told).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as told_by_child:
        assert f"this engine runs in process {os.getpid()}" in told_by_child.read()
    assert os.waitpid(child, 0)[1] == 0
    assert loop.run(double(4)) == 8


def test_the_caller_gets_what_the_work_comes_to(loop: LoopThread) -> None:
    assert loop.run(double(4)) == 8


async def test_it_runs_beside_a_loop_of_the_caller_as_in_a_notebook(loop: LoopThread) -> None:
    assert loop.run(double(4)) == 8


def test_an_error_of_the_work_is_the_callers(loop: LoopThread) -> None:
    async def fails() -> None:
        raise KeyError("a")

    with pytest.raises(KeyError):
        loop.run(fails())


@pytest.mark.usefixtures("usual_interrupt")
def test_an_interrupt_cancels_the_work_and_waits_for_its_end(loop: LoopThread) -> None:
    ended: list[str] = []

    async def works() -> None:
        try:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("tidy")

    with pytest.raises(KeyboardInterrupt):
        loop.run(works())
    assert ended == ["tidy"]
    assert loop.run(double(1)) == 2


def test_what_is_closed_takes_no_work(loop: LoopThread) -> None:
    loop.close()
    loop.close()
    assert not loop.is_open
    with pytest.raises(NotServing, match="the engine is closed"):
        loop.run(double(1))


def test_any_interrupt_cancels_the_work(loop: LoopThread) -> None:
    def leave(*signalled: object) -> None:
        raise SystemExit(3)

    ended: list[str] = []

    async def works() -> None:
        try:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            ended.append("tidy")

    usual = signal.signal(signal.SIGTERM, leave)
    try:
        with pytest.raises(SystemExit):
            loop.run(works())
    finally:
        signal.signal(signal.SIGTERM, usual)
    assert ended == ["tidy"]


def test_its_own_thread_cannot_wait_for_itself(loop: LoopThread) -> None:
    async def waits() -> None:
        loop.run(double(1))

    with pytest.raises(BadRequest, match="cannot wait for itself"):
        loop.run(waits())


def test_work_that_is_under_way_when_it_closes_is_not_waited_for(loop: LoopThread) -> None:
    begun = threading.Event()

    async def works() -> None:
        begun.set()
        await asyncio.Event().wait()

    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(lambda: loop.run(works()))
        begun.wait()
        loop.close()
        with pytest.raises(NotServing, match="closed meanwhile"):
            waiting.result()


def test_a_call_that_the_loop_never_came_to_is_refused(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_thread._Call, "begin", lambda call, loop: None)
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(lambda: loop.run(double(1)))
        while not loop._calls:
            pass
        loop.close()
        with pytest.raises(NotServing, match="closed meanwhile"):
            waiting.result()
