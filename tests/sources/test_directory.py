import asyncio
import errno
import logging
import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from watchdog.observers.inotify import InotifyObserver

from hotreload.checks.check import check_checkpoint
from hotreload.checks.fit import Policy
from hotreload.errors import BadRequest, CheckpointCorrupt, CheckpointRejected, SourceUnavailable
from hotreload.sources import directory as module
from hotreload.sources.directory import remote_file_system
from hotreload.types import Revision
from tests.sources.watching import Clock, arrive, directory, forget, shard, watching, write


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def no_thread_stays(request: pytest.FixtureRequest) -> object:
    before = set(threading.enumerate())
    yield
    left = {t for t in threading.enumerate() if not t.name.startswith("asyncio_")} - before
    assert left == set()


# How a checkpoint arrives


async def test_what_is_there_at_the_start_is_wished_newest_step_first(root: Path) -> None:
    for step in (90, 100, 20):
        write(root / f"step_{step}")
    async with watching(root) as watch:
        await watch.wished("step_100")


async def test_a_folder_renamed_into_the_root_is_wished_at_once(root: Path) -> None:
    async with watching(root, settle=1000.0) as watch:
        arrive(root / "step_1", shards=3)
        await watch.wished("step_1")


async def test_a_folder_renamed_within_the_root_is_wished_at_once(root: Path) -> None:
    async with watching(root, settle=1000.0) as watch:
        write(root / ".step_1.partial").rename(root / "step_1")
        await watch.wished("step_1")


async def test_a_nested_run_renamed_in_is_wished_at_once(tmp_path: Path, root: Path) -> None:
    write(tmp_path / "aside" / "a" / "step_7")
    async with watching(root, settle=1000.0) as watch:
        (tmp_path / "aside").rename(root / "run1")
        await watch.wished("step_7")


async def test_a_marker_completes_a_folder_at_once(root: Path) -> None:
    async with watching(root, settle=1000.0, marker="_SUCCESS") as watch:
        folder = write(root / "step_1")
        await watch.waits_for("step_1: waiting for its marker _SUCCESS")
        (folder / "_SUCCESS").touch()
        await watch.wished("step_1")


async def test_without_its_marker_a_folder_is_never_taken(root: Path) -> None:
    clock = Clock()
    async with watching(root, marker="_SUCCESS", clock=clock) as watch:
        arrive(root / "step_1")
        await watch.waits_for("waiting for its marker")
        clock.now += 1e6
        await watch.look()
        assert watch.wishes == []


async def test_a_marker_older_than_the_files_vouches_for_nothing(root: Path) -> None:
    clock = Clock()
    async with watching(root, settle=100.0, marker="_SUCCESS", clock=clock) as watch:
        (root / "step_1").mkdir()
        (root / "step_1" / "_SUCCESS").touch()
        later = time.time_ns()
        while time.time_ns() < later + 20_000_000:  # the kernel's file times tick every 4 ms
            await watch.look()
        write(root / "step_1")
        await watch.waits_for("complete, until it has been quiet for 100 s")
        clock.now += 100
        await watch.look()
        await watch.wished("step_1")


async def test_files_copied_slowly_are_waited_for_by_name_and_then_for_quiet(root: Path) -> None:
    clock = Clock()
    folder = root / "step_1"
    async with watching(root, settle=10.0, clock=clock) as watch:
        whole = write(root.parent / "aside", "x", shards=3)
        folder.mkdir()
        for name in ("model.safetensors.index.json", "model-00001-of-00003.safetensors"):
            (folder / name).write_bytes((whole / name).read_bytes())
        await watch.waits_for("step_1: waiting for model-00002-of-00003.safetensors")
        half = (whole / "model-00002-of-00003.safetensors").read_bytes()
        (folder / "model-00002-of-00003.safetensors").write_bytes(half[:-10])
        third = "model-00003-of-00003.safetensors"
        (folder / third).write_bytes((whole / third).read_bytes())
        written = f"{len(half) - 10} bytes of {len(half)} bytes written"
        await watch.waits_for(f"step_1: model-00002-of-00003.safetensors: {written}")
        clock.now += 9
        (folder / "model-00002-of-00003.safetensors").write_bytes(half)
        await watch.waits_for("complete, until it has been quiet for 10 s")
        clock.now += 9
        await watch.look()
        assert watch.wishes == []
        clock.now += 1
        await watch.look()
        await watch.wished("step_1")


async def test_settling_needs_no_event_to_end(root: Path) -> None:
    async with watching(root, settle=0.2) as watch:
        write(root / "step_1")
        await watch.wished("step_1")


@pytest.mark.parametrize("pattern", ["latest", "*"])
async def test_a_flipped_link_is_followed_at_once(root: Path, pattern: str) -> None:
    for step in (1, 2, 3):
        write(root / "runs" / f"step_{step}" if pattern == "latest" else root / f"step_{step}")
    base = root / "runs" if pattern == "latest" else root
    (root / "latest").symlink_to(base / "step_2")
    async with watching(root, settle=1000.0, pattern=pattern) as watch:
        (root / "new").symlink_to(base / "step_3")
        (root / "new").rename(root / "latest")
        await watch.wishes_for("step_3")
        assert (await watch.source.resolve(None)).label == "step_3"


async def test_a_root_that_is_a_link_is_followed_when_it_is_flipped(tmp_path: Path) -> None:
    for step in (1, 2):
        write(tmp_path / f"step_{step}")
    link = tmp_path / "current"
    link.symlink_to("step_1")
    settings = {"settle": 0.05, "survey": module_survey}
    async with watching(link, **settings) as watch:
        await watch.wished("step_1")
        (tmp_path / "new").symlink_to("step_2")
        (tmp_path / "new").rename(link)
        await watch.wished("step_1", "step_2")


async def test_a_single_folder_overwritten_is_wished_anew(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", "one")
    async with watching(folder) as watch:
        await watch.wished("model")
        write(folder, "two")
        await watch.wished("model", "model")
        (tmp_path / "aside").write_bytes(shard("three", "model.safetensors"))
        (tmp_path / "aside").rename(folder / "model.safetensors")
        await watch.wished("model", "model", "model")
        assert len({revision.id for revision in watch.wishes}) == 3


async def test_nested_step_folders_are_found(root: Path) -> None:
    write(root / "run1" / "a" / "step_5")
    write(root / "run2" / "step_3")
    write(root / "too" / "deep" / "for" / "us" / "step_9")
    async with watching(root) as watch:
        await watch.wished("step_5")
        write(root / "run3" / "step_6")
        await watch.wished("step_5", "step_6")


async def test_a_pattern_chooses_by_name_or_by_path(root: Path) -> None:
    write(root / "run1" / "step_5")
    write(root / "run2" / "step_3")
    write(root / "run2" / "other_9")
    async with watching(root, pattern="step_*") as watch:
        await watch.wished("step_5")
    async with watching(root, pattern="run2/step_*") as watch:
        await watch.wished("step_3")


async def test_folders_named_as_unfinished_are_left_alone(root: Path) -> None:
    for name in (".step_9", "step_9.tmp", "tmp-checkpoint-9", "step_9.partial"):
        arrive(root / name)
    arrive(root / "step_1")
    async with watching(root) as watch:
        await watch.wished("step_1")
        assert watch.waiting is None


# Which one is the newest


@pytest.mark.parametrize(("order", "expected"), [("step", "b_3"), ("time", "a_2"), ("name", "c_1")])
async def test_newest_is_by_the_rule(root: Path, order: str, expected: str) -> None:
    for name, age in (("c_1", 300), ("b_3", 200), ("a_2", 100)):
        file = write(root / name) / "model.safetensors"
        os.utime(file, (time.time() - age,) * 2)
    async with watching(root, order=order) as watch:
        await watch.until(lambda: bool(watch.wishes))
        await watch.wished(expected)


async def test_times_in_the_future_hide_nothing(root: Path) -> None:
    file = write(root / "a") / "model.safetensors"
    os.utime(file, (4e9, 4e9))
    async with watching(root, order="time") as watch:
        await watch.wished("a")
        arrive(root / "b")
        await watch.wished("a", "b")
    os.utime(write(root / "step_1") / "model.safetensors", (4e9, 4e9))
    write(root / "step_2")
    async with watching(root) as watch:
        await watch.wished("step_2")


async def test_of_two_at_once_the_newest_is_wished(root: Path) -> None:
    async with watching(root) as watch:
        arrive(root / "step_2")
        arrive(root / "step_1")
        await watch.wishes_for("step_2")
        await watch.look()
        assert watch.labels == ["step_2"]


async def test_of_a_hundred_in_a_moment_the_newest_is_wished(root: Path) -> None:
    async with watching(root) as watch:
        for step in range(100):
            arrive(root / f"step_{step}")
            await asyncio.sleep(0)
        await watch.wishes_for("step_99")
        assert watch.labels[-1] == "step_99"
        assert watch.looks() < 110


async def test_a_newer_incomplete_one_does_not_hide_an_older_one(root: Path) -> None:
    async with watching(root) as watch:
        write(root / "step_2", shards=4)
        (root / "step_2" / "model-00003-of-00004.safetensors").unlink()
        arrive(root / "step_1")
        await watch.wished("step_1")
        await watch.waits_for("step_2: waiting for model-00003-of-00004.safetensors")


async def test_identical_bytes_under_a_new_name_and_touched_files_are_no_news(root: Path) -> None:
    write(root / "step_1", "same")
    async with watching(root) as watch:
        await watch.wished("step_1")
        os.utime(root / "step_1" / "model.safetensors")
        await watch.look()
        arrive(root / "step_2", "same")
        await watch.look()
        arrive(root / "step_3", "other")
        await watch.wished("step_1", "step_3")


# What never becomes complete


async def test_a_copy_that_stays_half_is_handed_over_and_the_good_one_wished_again(
    root: Path,
) -> None:
    clock = Clock()
    write(root / "step_1")
    async with watching(root, clock=clock, settle=1.0, patience=50.0, rescan=30.0) as watch:
        clock.now += 1
        await watch.look()
        await watch.wished("step_1")
        os.truncate(write(root / "step_2") / "model.safetensors", 100)
        await watch.waits_for("step_2: model.safetensors: 100 bytes of")
        clock.now += 49
        await watch.look()
        assert watch.labels == ["step_1"]
        clock.now += 1
        await watch.look()
        await watch.wished("step_1", "step_2")
        folder = await watch.source.fetch(watch.wishes[-1])
        with pytest.raises(CheckpointCorrupt) as caught:
            check_checkpoint(watch.wishes[-1], folder, served=None, policy=Policy())
        assert caught.value.code == "truncated"
        clock.now += 30
        await watch.look()
        await watch.look()
        await watch.wished("step_1", "step_2", "step_1")
        clock.now += 1000
        await watch.look()
        assert len(watch.wishes) == 3


async def test_what_arrived_whole_and_is_broken_is_handed_over_after_settle(root: Path) -> None:
    async with watching(root, settle=0.1, patience=1000.0) as watch:
        aside = write(root.parent / "aside")
        os.truncate(aside / "model.safetensors", 100)
        aside.rename(root / "step_1")
        await watch.wished("step_1")


async def test_what_was_broken_long_before_the_start_is_handed_over_after_the_good_one(
    root: Path,
) -> None:
    write(root / "step_1")
    os.truncate(write(root / "step_2") / "model.safetensors", 100)
    next_week = time.time() + 7 * 86400
    async with watching(root, settle=1000.0, patience=1000.0, wall=lambda: next_week) as watch:
        await watch.wished("step_1")
        watch.source.wake()
        await watch.wished("step_1", "step_2")


async def test_a_folder_without_weights_is_said_and_never_handed_over(root: Path) -> None:
    clock = Clock()
    (root / "step_1").mkdir()
    (root / "step_1" / "config.json").write_text("{}")
    async with watching(root, clock=clock) as watch:
        await watch.waits_for("step_1: no *.safetensors or index yet")
        clock.now += 1e6
        await watch.look()
        assert watch.wishes == []


async def test_an_unsafe_folder_is_handed_over_for_its_own_reason(
    tmp_path: Path, root: Path
) -> None:
    write(tmp_path / "elsewhere")
    async with watching(root) as watch:
        (root / "step_1").symlink_to(tmp_path / "elsewhere")
        await watch.wished("elsewhere")
        await refused_as("unsafe_path", watch.wishes[0], watch, root)


@pytest.mark.parametrize("kind", ["fifo", "folder"])
async def test_a_trap_for_a_shard_blocks_nothing(root: Path, kind: str) -> None:
    async with watching(root) as watch:
        (root / "step_1").mkdir()
        path = root / "step_1" / "model.safetensors"
        os.mkfifo(path) if kind == "fifo" else path.mkdir()
        await watch.wished("step_1")
        await refused_as("unsafe_path", watch.wishes[0], watch, root)


async def test_unreadable_bytes_are_handed_over_to_be_refused(root: Path) -> None:
    def identify(_: object) -> str:
        raise CheckpointCorrupt("model.safetensors: cannot be read", code="io")

    async with watching(root, identify=identify) as watch:
        arrive(root / "step_1")
        await watch.wished("step_1")
        assert await watch.source.fetch(watch.wishes[0]) == root / "step_1"


async def test_a_checkpoint_rewritten_while_it_is_hashed_is_looked_at_again(root: Path) -> None:
    times = iter(range(2))

    def identify(_: object) -> str:
        if next(times, None) is not None:
            raise CheckpointCorrupt("model.safetensors: it was written to", code="changed")
        return "0" * 32

    async with watching(root, identify=identify, rescan=0.05) as watch:
        arrive(root / "step_1")
        await watch.wished("step_1")


@pytest.mark.parametrize("link", ["loop", "dangling"])
async def test_a_link_that_leads_nowhere_is_waited_for(root: Path, link: str) -> None:
    (root / "latest").symlink_to("latest" if link == "loop" else "step_1")
    async with watching(root, pattern="latest") as watch:
        assert watch.waiting is not None
        arrive(root / "step_1")
        (root / "new").symlink_to("step_1")
        (root / "new").rename(root / "latest")
        await watch.wished("step_1")


# Fetching and naming


async def test_fetch_gives_the_folder_until_somebody_touches_it(root: Path) -> None:
    write(root / "step_1")
    async with watching(root) as watch:
        await watch.wished("step_1")
        (revision,) = watch.wishes
        assert await watch.source.fetch(revision) == root / "step_1"
        write(root / "step_1", "other")
        with pytest.raises(SourceUnavailable, match="changed since"):
            await watch.source.fetch(revision)
        forget(root / "step_1")
        with pytest.raises(SourceUnavailable):
            await watch.source.fetch(revision)


async def test_a_revision_of_an_earlier_run_is_found_again_by_its_label(root: Path) -> None:
    write(root / "run" / "step_1")
    first = await directory(root).resolve("step_1")
    assert await directory(root).fetch(first) == root / "run" / "step_1"
    write(root / "run" / "step_1", "other")
    with pytest.raises(SourceUnavailable, match="no folder below"):
        await directory(root).fetch(first)
    forget(root / "run")
    with pytest.raises(SourceUnavailable, match="no folder below"):
        await directory(root).fetch(first)


async def test_a_checkpoint_can_be_named_in_every_usual_way(tmp_path: Path, root: Path) -> None:
    write(root / "run" / "step_1")
    write(tmp_path / "models" / "base")
    source = directory(root, roots=[tmp_path / "models"], survey=module_survey)
    by_name = await source.resolve("step_1")
    for name in ("run/step_1", str(root / "run" / "step_1"), by_name.id):
        assert await source.resolve(name) == by_name
    assert (await source.resolve("base")).label == "base"
    assert (await source.resolve(str(tmp_path / "models" / "base"))).label == "base"


@pytest.mark.parametrize("name", ["../elsewhere", "/", "/etc", "link"])
async def test_what_lies_outside_of_the_roots_is_no_name(
    tmp_path: Path, root: Path, name: str
) -> None:
    write(tmp_path / "elsewhere")
    (root / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadRequest, match=f"outside of the allowed folders: {root}"):
        await directory(root).resolve(name)


@pytest.mark.parametrize("name", ["nothing", "", "file", "a\0b", "x" * 5000])
async def test_what_is_no_folder_is_no_name(root: Path, name: str) -> None:
    (root / "file").touch()
    with pytest.raises((BadRequest, SourceUnavailable)):
        await directory(root, settle=0.01).resolve(name)


async def test_naming_a_folder_that_is_being_written_says_what_is_missing(root: Path) -> None:
    path = write(root / "step_1") / "model.safetensors"
    whole = path.read_bytes()
    os.truncate(path, 100)
    source = directory(root, settle=0.3)
    resolving = asyncio.create_task(source.resolve("step_1"))
    await asyncio.sleep(0.05)
    path.write_bytes(whole[:120])
    with pytest.raises(SourceUnavailable, match=r"step_1: model\.safetensors: 120 bytes of"):
        await resolving


async def test_naming_a_folder_that_stays_incomplete_hands_it_over(root: Path) -> None:
    os.truncate(write(root / "step_1") / "model.safetensors", 100)
    revision = await directory(root, settle=0.05).resolve("step_1")
    assert revision.label == "step_1"


async def test_the_newest_can_be_asked_for(root: Path) -> None:
    source = directory(root, settle=0.05)
    with pytest.raises(SourceUnavailable, match="no checkpoint in"):
        await source.resolve(None)
    write(root / "step_2")
    os.truncate(write(root / "step_3") / "model.safetensors", 100)
    assert (await source.resolve(None)).label == "step_2"
    forget(root / "step_2")
    with pytest.raises(SourceUnavailable, match=r"step_3: model\.safetensors: 100 bytes of"):
        await source.resolve(None)
    await source.close()


# The root


async def test_a_root_made_later_is_watched_at_once(tmp_path: Path) -> None:
    root = tmp_path / "later"
    async with watching(root) as watch:
        await watch.waits_for("later: cannot be looked at: No such file or directory")
        assert watch.error is not None
        root.mkdir()
        await watch.until(lambda: watch.error is None)
        arrive(root / "step_1")
        await watch.wished("step_1")


async def test_a_root_deep_in_what_is_missing_is_found_by_rescan(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b"
    async with watching(root, rescan=0.05) as watch:
        write(root / "step_1")
        await watch.wished("step_1")


@pytest.mark.parametrize("how", ["deleted", "renamed"])
async def test_a_root_put_in_the_place_of_another_is_watched(root: Path, how: str) -> None:
    write(root / "step_1")
    async with watching(root) as watch:
        await watch.wished("step_1")
        forget(root) if how == "deleted" else root.rename(root.parent / "old")
        await watch.until(lambda: watch.error is not None)
        root.mkdir()
        await watch.until(lambda: watch.error is None)
        for step in (2, 3):
            arrive(root / f"step_{step}")
            await watch.wishes_for(f"step_{step}")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_an_unreadable_root_is_said(root: Path) -> None:
    async with watching(root, rescan=0.05) as watch:
        root.chmod(0)
        await watch.waits_for("Permission denied")
        root.chmod(0o755)
        arrive(root / "step_1")
        await watch.wished("step_1")


async def test_a_root_that_cannot_be_listed_is_said_and_looked_at_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    really = os.scandir
    fails = True

    def scandir(path: object) -> object:
        if fails and Path(str(path)) == root:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return really(path)  # type: ignore[call-overload]

    monkeypatch.setattr("os.scandir", scandir)
    write(root / "step_1")
    async with watching(root, rescan=0.05) as watch:
        await watch.waits_for("root: cannot be looked at: Permission denied")
        fails = False
        await watch.wished("step_1")
        assert watch.waiting is None


async def test_a_fault_in_a_look_does_not_end_the_watch(root: Path) -> None:
    faults = iter(range(2))

    def looks(folder: Path) -> object:
        if next(faults, None) is not None:
            raise RuntimeError("a fault of ours")
        return module_survey(folder)

    write(root / "step_1")
    async with watching(root, survey=looks, rescan=0.05) as watch:
        await watch.wished("step_1")
        assert "RuntimeError: a fault of ours" in watch.errors


# The alarm clock


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
    monkeypatch.setattr(module, "remote_file_system", lambda _: "nfs4")
    async with watching(root, rescan=0.05) as watch:
        assert not [t for t in threading.enumerate() if type(t).__module__.startswith("watchdog")]
        write(root / "step_1")
        await watch.wished("step_1")
        assert watch.looks("event") == 0


async def test_a_used_up_watch_limit_means_polling_and_is_said_once(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def start(_: object) -> None:
        raise OSError(errno.ENOSPC, "inotify watch limit reached")

    monkeypatch.setattr(InotifyObserver, "start", start)
    monkeypatch.setattr(module, "_RETRY", 0.0)
    async with watching(root, rescan=0.02) as watch:
        write(root / "step_1")
        await watch.wished("step_1")
        await watch.looked(3)
    said = [record.getMessage() for record in caplog.records if "polling" in record.getMessage()]
    assert len(said) == 1
    assert "inotify watch limit reached; see fs.inotify.max_user_watches" in said[0]


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
        for _ in range(9000):
            path.rename(path := path.with_name("b" if path.name == "a" else "a"))
        go.set()
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
"""
    assert remote_file_system(Path(path), table) == kind


async def test_detection_takes_less_than_half_a_second(
    root: Path, record_property: Callable[[str, object], None]
) -> None:
    seconds: list[float] = []
    async with watching(root, settle=1000.0, marker=None) as watch:
        for step in range(20):
            started = time.perf_counter()
            arrive(root / f"step_{step}", shards=2)
            await watch.wishes_for(f"step_{step}")
            seconds.append(time.perf_counter() - started)
    record_property("median_ms", round(statistics.median(seconds) * 1e3, 1))
    print(f"\ndetection: median {statistics.median(seconds) * 1e3:.1f} ms, {max(seconds):.3f} s")
    assert max(seconds) < 0.5


async def test_a_cancel_waits_for_the_thread(root: Path) -> None:
    began, go, ended = threading.Event(), threading.Event(), threading.Event()

    def identify(_: object) -> str:
        began.set()
        go.wait()
        ended.set()
        return "0" * 32

    write(root / "step_1")
    source = directory(root, settle=0.0, identify=identify)
    looking = asyncio.create_task(source.resolve("step_1"))
    await asyncio.to_thread(began.wait)
    try:
        for _ in range(2):
            looking.cancel()
            await asyncio.sleep(0)
        assert not looking.done()
    finally:
        go.set()  # or the thread would hold up the end of the test
    with pytest.raises(asyncio.CancelledError):
        await looking
    assert ended.is_set()
    await source.close()


async def test_closing_ends_the_wishes_and_a_second_close_is_harmless(root: Path) -> None:
    async with watching(root) as watch:
        await watch.source.close()
        await watch.source.close()
        watch.source.wake()


def module_survey(folder: Path) -> object:
    from hotreload.checks.files import survey

    return survey(folder)


async def refused_as(code: str, revision: Revision, watch: object, root: Path) -> None:
    folder = await watch.source.fetch(revision)  # type: ignore[attr-defined]
    with pytest.raises(CheckpointRejected) as caught:
        check_checkpoint(
            revision, folder, served=None, policy=Policy(), root=root, content_id=revision.id
        )
    assert caught.value.code == code
