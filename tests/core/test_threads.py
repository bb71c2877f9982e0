"""A thread cannot be cancelled: it is waited for, or left behind, and frees what it made."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from hotreload import threads
from hotreload.threads import in_thread, left_behind, run_checked


class Made:
    """What a piece of work makes; big, if it were real."""


class Work:
    """Work that ends when it is told to, whatever it is asked."""

    def __init__(self) -> None:
        self.began, self.go = threading.Event(), threading.Event()
        self.told: threading.Event | None = None
        self.freed: list[Made] = []
        self.was_freed = threading.Event()

    def __call__(self, cancel: threading.Event) -> Made:
        self.told = cancel
        self.began.set()
        self.go.wait()
        return Made()

    def free(self, made: Made) -> None:
        self.freed.append(made)
        self.was_freed.set()

    async def begun(self, leave_as: str | None = None) -> asyncio.Task[Made]:
        task = asyncio.create_task(in_thread(self, discard=self.free, leave_as=leave_as))
        await asyncio.to_thread(self.began.wait)
        return task


@pytest.fixture
def work() -> Iterator[Work]:
    made = Work()
    yield made
    made.go.set()


async def test_the_result_comes_back_and_is_not_freed(work: Work) -> None:
    task = await work.begun()
    work.go.set()
    assert isinstance(await task, Made)
    assert work.freed == []


@pytest.mark.parametrize("is_checked", [False, True])
async def test_an_error_comes_back_and_holds_nothing_in_a_circle(is_checked: bool) -> None:
    made: list[weakref.ref[Made]] = []

    def fail(_: threading.Event) -> None:
        held = Made()
        made.append(weakref.ref(held))
        raise ValueError("oops")

    gc.disable()
    try:
        work = in_thread(fail)
        work = run_checked(asyncio.Event(), lambda: None, work) if is_checked else work
        with pytest.raises(ValueError, match="oops") as caught:
            await work
        del work
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.name.startswith("asyncio"):
                thread.join(1)
        del caught
        await asyncio.sleep(0)
        assert made[0]() is None
    finally:
        gc.enable()


async def test_a_cancel_tells_the_work_waits_for_it_and_frees_what_it_made(work: Work) -> None:
    task = await work.begun()
    task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert work.told is not None
    assert await asyncio.to_thread(work.told.wait, 5)
    assert not task.done()
    work.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(work.freed) == 1
    assert left_behind() is None


async def test_what_hangs_is_left_behind_and_frees_what_it_made_when_it_ends(
    work: Work, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads, "LEAVE_AFTER", 0.02)
    task = await work.begun("a read of step_9")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left_behind() == "a read of step_9"
    assert "threads.left_behind" in caplog.text
    work.go.set()
    assert await asyncio.to_thread(work.was_freed.wait, 5)
    while left_behind():  # noqa: ASYNC110 - the thread has only to return
        await asyncio.sleep(0)


async def test_what_ends_in_time_is_not_left_behind(work: Work) -> None:
    task = await work.begun("a read of step_9")
    task.cancel()
    await asyncio.sleep(0)
    work.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left_behind() is None
    assert len(work.freed) == 1


async def test_no_thread_of_ours_keeps_the_process_from_ending(work: Work) -> None:
    task = await work.begun("a read of step_9")
    (ours,) = (t for t in threading.enumerate() if t.name == "a read of step_9")
    assert ours.daemon
    work.go.set()  # or the end of the loop waits for it
    await task


async def test_what_was_made_as_the_cancel_came_is_freed_and_nobody_waits_on() -> None:
    go, made, freed = asyncio.Event(), Made(), list[Made]()

    async def work() -> Made:
        await go.wait()
        return made

    async def free(result: Made) -> None:
        freed.append(result)

    checking = asyncio.create_task(run_checked(asyncio.Event(), lambda: None, work(), free))
    await asyncio.sleep(0)
    await asyncio.sleep(0)  # now it waits
    go.set()
    await asyncio.sleep(0)  # the work ends in this turn of the loop
    await asyncio.sleep(0)
    checking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await checking
    assert freed == [made]
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_work_that_fails_because_it_was_given_up_is_no_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    began = threading.Event()

    def fail(cancel: threading.Event) -> None:
        began.set()
        cancel.wait()
        raise ValueError("given up")

    working = asyncio.create_task(in_thread(fail))
    await asyncio.to_thread(began.wait)
    working.cancel()
    await asyncio.wait({working})
    del working
    gc.collect()
    assert caplog.records == []


async def test_an_error_holds_nothing_of_what_the_work_had_made() -> None:
    made: list[weakref.ref[Made]] = []

    def half() -> None:
        half_a_set = Made()
        made.append(weakref.ref(half_a_set))
        raise KeyError("a tensor")

    def fail(cancel: threading.Event) -> None:
        beside = Made()
        made.append(weakref.ref(beside))
        try:
            half()
        except KeyError as missing:
            raise ValueError("no set") from missing

    with pytest.raises(ValueError, match="no set") as failed:
        await in_thread(fail)
    assert [each() for each in made] == [None, None]
    assert failed.traceback[-1].name == "fail"
