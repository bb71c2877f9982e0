import asyncio
import errno
import logging
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from watchdog.observers.inotify import InotifyEmitter, InotifyObserver, InotifyWatchGroup

from hotreload.sources import alarm
from hotreload.sources.alarm import remote_file_system
from tests.sources.watching import (
    arrive,
    watching,
    write,
)


async def test_our_own_reads_wake_nobody(root: Path) -> None:
    write(root / "step_1", shards=3)
    async with watching(root) as watch:
        await watch.wished("step_1")
        await watch.look()
        looks = watch.looks()
        for path in (root / "step_1").iterdir():
            path.read_bytes()
        await watch.source.fetch(watch.wishes[0])
        await asyncio.sleep(0.2)  # for events that must not come there is nothing to wait on
        assert watch.looks() == looks


async def test_a_rescan_finds_what_no_event_told(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alarm, "remote_file_system", lambda _: "nfs4")
    async with watching(root, rescan=0.05) as watch:
        assert not [t for t in threading.enumerate() if type(t).__module__.startswith("watchdog")]
        write(root / "step_1")
        await watch.wished("step_1")
        assert watch.looks("event") == 0


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (OSError(errno.ENOSPC, "inotify watch limit reached"), "inotify watch limit reached"),
        (RuntimeError("can't start new thread"), "can't start new thread"),
    ],
)
async def test_no_watcher_to_be_had_means_polling_and_is_said_once(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: Exception,
    words: str,
) -> None:
    def start(_: object) -> None:
        raise fault

    monkeypatch.setattr(InotifyObserver, "start", start)
    monkeypatch.setattr(alarm, "_RETRY", 0.0)
    async with watching(root, rescan=0.02) as watch:
        write(root / "step_1")
        await watch.wished("step_1")
        await watch.looked(3)
    said = [vars(each)["why"] for each in caplog.records if each.message == "source.polling"]
    assert len(said) == 1
    assert f"{words}; see fs.inotify.max_user_watches" in said[0]


async def test_an_event_that_comes_while_we_stop_is_no_line_in_the_log(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    held, stopping = threading.Event(), threading.Event()
    read_event, deactivate = InotifyWatchGroup.read_event, InotifyWatchGroup.deactivate

    def read_and_hold(group: InotifyWatchGroup) -> object:
        event = read_event(group)
        if event is not None:
            held.set()
            stopping.wait()
        return event

    def deactivate_and_let_go(group: InotifyWatchGroup) -> None:
        deactivate(group)
        stopping.set()

    monkeypatch.setattr(InotifyWatchGroup, "read_event", read_and_hold)
    monkeypatch.setattr(InotifyWatchGroup, "deactivate", deactivate_and_let_go)
    async with watching(root):
        (root / "file").touch()
        await asyncio.to_thread(held.wait)
    assert caplog.records == []


async def test_a_folder_that_watchdog_finds_twice_is_no_warning(root: Path) -> None:
    async with watching(root):
        observer = next(t for t in threading.enumerate() if isinstance(t, InotifyObserver))
        for emitter in observer.emitters:
            assert isinstance(emitter, InotifyEmitter)
            assert emitter._inotify is not None
            emitter._inotify._add_callback(emitter._inotify.path)  # warnings are errors here


async def test_a_dead_watcher_is_replaced(root: Path) -> None:
    async with watching(root) as watch:
        observer = next(t for t in threading.enumerate() if isinstance(t, InotifyObserver))
        for emitter in list(observer.emitters):
            emitter.stop()
            await asyncio.to_thread(emitter.join)
        await watch.look()
        arrive(root / "step_1")
        await watch.wished("step_1")


async def test_an_overflow_is_heard_and_counted(root: Path) -> None:
    async with watching(root) as watch:
        record = "Inotify queue overflowed; filesystem events were lost"
        looked = asyncio.create_task(watch.looked(cause="overflow"))
        await asyncio.sleep(0)
        logging.getLogger("watchdog.observers.inotify_c").warning(record)
        await looked


async def test_a_real_overflow_loses_no_checkpoint(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from watchdog.observers.inotify_c import InotifyFD

    asleep, go = threading.Event(), threading.Event()
    really = InotifyFD.read_events

    def read_events(self: InotifyFD) -> object:
        asleep.set()
        go.wait()
        return really(self)

    async with watching(root) as watch:
        monkeypatch.setattr(InotifyFD, "read_events", read_events)
        (root / "wake").touch()
        await asyncio.to_thread(asleep.wait)
        path = root / "wake"
        try:
            for _ in range(9000):
                path.rename(path := path.with_name("b" if path.name == "a" else "a"))
        finally:
            go.set()  # or closing would wait for the reader for ever
        await watch.until(lambda: watch.looks("overflow") > 0)
        arrive(root / "step_1")
        await watch.wished("step_1")


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/data/ckpt", "nfs4"),
        ("/data/local/x", None),
        ("/mnt/my bucket/x", "fuse.gcsfuse"),
        ("/home", None),
        ("/over", "cifs"),
        ("/dataset", None),
        ("/odd\u2028 \x0c/x", "ceph"),
    ],
)
def test_file_systems_that_tell_nothing_are_known(path: str, kind: str | None) -> None:
    table = """\
22 1 0:1 / / rw - ext4 /dev/vda rw
23 22 0:2 / /data rw,relatime shared:1 - nfs4 server:/x rw
24 23 0:3 / /data/local rw - xfs /dev/vdb rw
25 22 0:4 / /mnt/my\\040bucket rw - fuse.gcsfuse bucket rw
26 22 0:5 / /over rw - ext4 /dev/vdc rw
27 26 0:6 / /over rw - cifs //a/b rw
28 22 0:7 / /odd\u2028\\040\x0c rw - ceph a:/ rw
"""
    assert remote_file_system(Path(path), table) == kind


async def test_detection_usually_takes_less_than_half_a_second(
    root: Path, record_property: Callable[[str, object], None]
) -> None:
    seconds: list[float] = []
    async with watching(root, settle=1000.0, marker=None) as watch:
        for step in range(20):
            started = time.perf_counter()
            arrive(root / f"step_{step}", shards=2)
            await watch.wishes_for(f"step_{step}")
            seconds.append(time.perf_counter() - started)
    median = statistics.median(seconds)  # one may take long on a busy machine
    record_property("median_ms", round(median * 1e3, 1))
    print(f"\ndetection: median {median * 1e3:.1f} ms, {max(seconds):.3f} s")
    assert median < 0.5
