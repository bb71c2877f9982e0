"""Coroutines run in a thread of their own, for callers who have no loop, or one that runs."""

import asyncio
import signal
import threading
from collections.abc import Iterator

import pytest

from hotreload.errors import NotServing
from hotreload.hot.loop_thread import LoopThread


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.close()


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_the_caller_gets_what_the_work_comes_to(loop: LoopThread) -> None:
    assert loop.run(double(4)) == 8


async def test_it_runs_beside_a_loop_of_the_caller_as_in_a_notebook(loop: LoopThread) -> None:
    assert loop.run(double(4)) == 8


def test_an_error_of_the_work_is_the_callers(loop: LoopThread) -> None:
    async def fails() -> None:
        raise KeyError("a")

    with pytest.raises(KeyError):
        loop.run(fails())


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
