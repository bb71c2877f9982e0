"""What lies here after a fetch from a hub: one commit's files, whole and verified, or nothing."""

import asyncio
import errno
import os
import subprocess
import threading
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hotreload import threads
from hotreload.checkpoint import digests
from hotreload.checkpoint.content import Content, examine
from hotreload.checkpoint.digests import Digests, content_id
from hotreload.checkpoint.file_reader import Readable
from hotreload.checkpoint.known_names import INDEX, LARGEST_INDEX
from hotreload.checkpoint.survey import survey
from hotreload.errors import CheckpointRejected, NotEnoughMemory, SourceUnavailable
from hotreload.events import Event, Progress
from hotreload.quiet import Quiet
from hotreload.sources.hub import client, download
from hotreload.sources.hub.snapshots import Snapshot, Snapshots
from hotreload.sources.huggingface import HuggingFaceSource
from hotreload.threads import in_thread
from hotreload.types import Phase, Revision
from tests.hub.local_hub import REPO, LocalHub, local_hub
from tests.sources.following import checkpoint, hub_source
from tests.sources.watching import shard
from tests.waiting import PATIENCE

SERVED = {"model.safetensors", "config.json", "tokenizer.json"}
LARGE = 5 << 20


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with local_hub() as made:
        yield made


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "FIRST_RETRY_PAUSE", 0.001)


SOUND = b"\2\0\0\0\0\0\0\0{}"
"""A file with no tensors, which nothing but its bytes can condemn."""


def large(content: str = "one") -> dict[str, bytes]:
    """A commit that comes in several pieces."""
    return checkpoint(content, model__safetensors=content.encode() * (LARGE // len(content)))


def cached(tmp_path: Path) -> set[str]:
    """What lies in the repo's folder, but for its own notes."""
    folder = tmp_path / REPO.replace("/", "--")
    names = set(os.listdir(folder)) if folder.exists() else set()
    return {name for name in names if not name.startswith((".head-", ".lock"))}


def served(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.iterdir() if not path.name.startswith("."))
    return {path.name: path.read_bytes() for path in files}


async def fetched(source: HuggingFaceSource, name: str | None = None) -> Path:
    return await source.fetch(await source.resolve(name))


# --- what comes ------------------------------------------------------------------------------


async def test_only_what_serving_needs_comes_and_it_is_the_commits(
    hub: LocalHub, tmp_path: Path
) -> None:
    files = checkpoint("one", tokenizer__json=b"{}", onnx__safetensors=shard("x", "y"))
    sha = hub.push(files)
    folder = await fetched(hub_source(hub, tmp_path, allow=["*.safetensors", "*.json", "*.bin"]))
    assert folder.name == sha
    assert served(folder) == {name: files[name] for name in SERVED}
    assert cached(tmp_path) == {sha}


async def test_the_index_says_which_shards_come(hub: LocalHub, tmp_path: Path) -> None:
    index = b'{"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}'
    shards = {f"{name}.safetensors": shard(name, name) for name in ("a", "b", "consolidated")}
    hub.push({"model.safetensors.index.json": index, **shards})
    folder = await fetched(hub_source(hub, tmp_path))
    assert set(served(folder)) == {
        "model.safetensors.index.json",
        "a.safetensors",
        "b.safetensors",
    }


async def test_names_that_lead_out_of_the_folder_do_not_come(hub: LocalHub, tmp_path: Path) -> None:
    evil = {"../escaped.json": b"{}", "/escaped.json": b"{}", "sub/x.json": b"{}", ".x.json": b"{}"}
    hub.push({**checkpoint("one"), **evil})
    source = hub_source(hub, tmp_path / "cache", allow=["*.safetensors", "*.json"])
    assert set(served(await fetched(source))) == {"model.safetensors", "config.json"}
    assert os.listdir(tmp_path) == ["cache"]


async def test_a_repo_of_pickles_is_refused_before_anything_comes(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.push({"pytorch_model.bin": b"a pickle", "config.json": b"{}"})
    with pytest.raises(CheckpointRejected, match="holds no safetensors file") as caught:
        await fetched(hub_source(hub, tmp_path, allow=["*"]))
    assert caught.value.code == "format"
    assert "it holds pytorch_model.bin, which hotreload does not read: save as" in str(caught.value)
    assert hub.count("GET .*/resolve/") == 0


@pytest.mark.parametrize(
    ("files", "code", "words"),
    [
        (["config.json"], "missing", r"lets through$"),
        (["config.json", "hf/model.safetensors"], "missing", "at its top count, not hf/model.saf"),
        (["_METADATA", "manifest.ocdbt"], "format", "it holds _METADATA, which"),
    ],
)
async def test_a_commit_without_weights_is_refused_for_what_it_holds_instead(
    hub: LocalHub, tmp_path: Path, files: list[str], code: str, words: str
) -> None:
    hub.push(dict.fromkeys(files, b"{}"))
    with pytest.raises(CheckpointRejected, match=words) as caught:
        await fetched(hub_source(hub, tmp_path))
    assert caught.value.code == code


async def test_an_index_too_large_to_be_read_is_refused_before_anything_comes(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.push({**checkpoint("one"), INDEX: b" " * (LARGEST_INDEX + 1)})
    with pytest.raises(CheckpointRejected, match=r"is 33.6 MB, no more than 33.6 MB are read"):
        await fetched(hub_source(hub, tmp_path / "cache"))
    assert hub.count("GET .*/resolve/") == 0


async def test_equal_files_are_taken_from_the_commit_before(hub: LocalHub, tmp_path: Path) -> None:
    hub.push(large())
    source = hub_source(hub, tmp_path)
    before = await fetched(source)
    hub.push({**large(), "config.json": b'{"new": true}'})
    now = await fetched(source)
    assert before != now
    assert hub.count("/cdn/") == 1
    assert (now / "model.safetensors").samefile(before / "model.safetensors")
    assert not (now / "config.json").samefile(before / "config.json")


async def test_a_disk_that_knows_no_links_costs_a_download(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = hub_source(hub, tmp_path)
    hub.push(large("one"))
    await fetched(source)

    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    files = large("two")
    hub.push(files)
    assert served(await fetched(source))["config.json"] == files["config.json"]


async def test_progress_is_told_from_the_first_byte_to_the_last(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.push(large())
    fault = hub.fault("/cdn/", hold=1 << 20)
    told: list[Event] = []
    came = asyncio.Event()

    def note(event: Event) -> None:
        told.append(event)
        if isinstance(event, Progress) and event.done:
            came.set()

    fetching = asyncio.create_task(fetched(hub_source(hub, tmp_path, note)))
    await asyncio.wait_for(came.wait(), PATIENCE)
    fault.release.set()
    await fetching
    total = len(large()["model.safetensors"]) + len(b"{}")
    done = [event.done for event in told if isinstance(event, Progress)]
    assert done == sorted(done)
    assert done[0] < done[-1] == total
    last = told[-1]
    assert isinstance(last, Progress)
    assert (last.phase, last.total) == (Phase.FETCHING, total)


# --- what breaks -----------------------------------------------------------------------------


async def test_a_body_that_breaks_off_is_resumed_where_it_did(
    hub: LocalHub, tmp_path: Path
) -> None:
    files = large()
    hub.push(files)
    for cut in (3 << 20, 1 << 20):
        hub.fault("/cdn/", cut=cut)
    folder = await fetched(hub_source(hub, tmp_path))
    assert served(folder)["model.safetensors"] == files["model.safetensors"]
    ranges = [asked.range for asked in hub.asked if "/cdn/" in asked.line]
    assert ranges == [None, f"bytes={3 << 20}-", f"bytes={4 << 20}-"]


async def test_a_list_of_files_that_breaks_off_is_the_hubs_fault_and_not_the_disks(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.push(large())
    hub.fault("/api/models", cut=10)
    source = hub_source(hub, tmp_path)
    with pytest.raises(SourceUnavailable, match="broke off in the middle of an answer"):
        await fetched(source)
    await fetched(source)


async def test_a_list_of_files_that_does_not_end_fills_no_memory(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "LARGEST_LISTING", 100)
    hub.push(large())
    with pytest.raises(SourceUnavailable, match="the hub's list of files is longer than") as no:
        await fetched(hub_source(hub, tmp_path))
    assert no.value.code == "denied"


async def test_a_body_that_stalls_is_asked_for_again_from_there(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "SILENT_READ_SECONDS", 0.2)
    files = large()
    hub.push(files)
    hub.fault("/cdn/", hold=1 << 20)
    folder = await fetched(hub_source(hub, tmp_path))
    assert served(folder)["model.safetensors"] == files["model.safetensors"]
    ranges = [asked.range for asked in hub.asked if "/cdn/" in asked.line]
    assert ranges == [None, f"bytes={1 << 20}-"]


async def test_a_hub_that_knows_no_ranges_is_asked_for_all_of_it_again(
    hub: LocalHub, tmp_path: Path
) -> None:
    files = large()
    hub.push(files)
    for _ in range(3):
        hub.fault("/cdn/", cut=1 << 20)
        hub.fault("/cdn/", without_ranges=True)
    folder = await fetched(hub_source(hub, tmp_path))
    assert served(folder)["model.safetensors"] == files["model.safetensors"]


async def test_a_download_that_fails_leaves_no_snapshot_and_goes_on_the_next_time(
    hub: LocalHub, tmp_path: Path
) -> None:
    files = large()
    sha = hub.push(files)
    hub.fault("/cdn/", cut=2 << 20)
    broken = hub.fault("/cdn/", status=503, times=1000)
    source = hub_source(hub, tmp_path)
    with pytest.raises(SourceUnavailable, match="503: the hub has trouble of its own"):
        await fetched(source)
    assert cached(tmp_path) == {f".partial-{sha}"}
    broken.times = 0
    other = hub_source(hub, tmp_path)  # after a restart
    assert served(await fetched(other))["model.safetensors"] == files["model.safetensors"]
    assert [asked.range for asked in hub.asked if "/cdn/" in asked.line][-1] == f"bytes={2 << 20}-"
    assert cached(tmp_path) == {sha}


async def test_what_an_earlier_try_laid_down_for_other_settings_is_no_part_of_it(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.push({"vocab.json": b"{}", **large()})
    broken = hub.fault("/cdn/", status=503, times=1000)
    with pytest.raises(SourceUnavailable):
        await fetched(hub_source(hub, tmp_path))
    broken.times = 0
    narrower = hub_source(hub, tmp_path, allow=["*.safetensors", "config.json"])
    assert set(served(await fetched(narrower))) == {"model.safetensors", "config.json"}


async def test_bytes_that_are_not_the_hubs_are_asked_for_again(
    hub: LocalHub, tmp_path: Path
) -> None:
    files = large()
    hub.push(files)
    hub.fault("/cdn/", corrupt=True)
    folder = await fetched(hub_source(hub, tmp_path))
    assert served(folder)["model.safetensors"] == files["model.safetensors"]


@pytest.mark.parametrize("name", ["/cdn/", "config.json"])
async def test_a_corrupted_body_of_the_right_length_is_refused(
    hub: LocalHub, tmp_path: Path, name: str
) -> None:
    hub.push(large())
    hub.fault(f"GET .*{name}", corrupt=True, times=1000)
    source = hub_source(hub, tmp_path)
    with pytest.raises(CheckpointRejected, match="came 3 times with other bytes") as caught:
        await fetched(source)
    assert caught.value.code == "digest"
    assert not any(len(name) == 40 for name in cached(tmp_path))


async def test_a_force_push_in_mid_download_mixes_nothing(hub: LocalHub, tmp_path: Path) -> None:
    one, two = large("one"), large("two")
    hub.push(one)
    fault = hub.fault("/cdn/", hold=1 << 20)
    source = hub_source(hub, tmp_path)
    fetching = asyncio.create_task(fetched(source))
    await in_thread(lambda cancel: fault.seen.wait(PATIENCE))
    second = hub.push({**two, "config.json": b'{"two": true}'})
    fault.release.set()
    assert served(await fetching) == {name: one[name] for name in SERVED & one.keys()}
    assert (await source.resolve(None)).id == second
    assert served(await fetched(source))["config.json"] == b'{"two": true}'


async def test_a_commit_that_is_gone_in_mid_download_is_not_asked_for_at_once(
    hub: LocalHub, tmp_path: Path
) -> None:
    gone = hub.push(large("one"))
    source = hub_source(hub, tmp_path)
    revision = await source.resolve(None)
    hub.push(large("two"))
    hub.forget(gone)
    with pytest.raises(SourceUnavailable, match="has no such branch, tag or commit") as caught:
        await source.fetch(revision)
    assert caught.value.retry_after is not None
    assert caught.value.retry_after > 200


async def test_a_download_that_is_given_up_ends_and_leaves_no_snapshot(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.push(large())
    fault = hub.fault("/cdn/", hold=1 << 20)
    fetching = asyncio.create_task(fetched(hub_source(hub, tmp_path)))
    await in_thread(lambda cancel: fault.seen.wait(PATIENCE))
    fetching.cancel()
    fault.release.set()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    assert not any(len(name) == 40 for name in cached(tmp_path))


async def test_a_hub_that_says_when_in_mid_download_is_not_asked_before(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.push(large())
    hub.fault("GET.*safetensors", status=503, headers={"Retry-After": "120"}, times=9)
    source = hub_source(hub, tmp_path)
    with pytest.raises(SourceUnavailable, match="503") as caught:
        await fetched(source)
    assert caught.value.retry_after == 120
    assert hub.count("GET.*safetensors") == 1


async def test_a_file_that_is_listed_and_not_there_is_the_hubs_fault(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.push(large())
    hub.fault("GET.*safetensors", status=404, code="EntryNotFound", times=9)
    with pytest.raises(SourceUnavailable, match="lists a file that it does not have") as caught:
        await fetched(hub_source(hub, tmp_path))
    assert caught.value.code == "source"


async def test_what_lies_here_is_handed_over_while_a_download_hangs(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "LEAVE_AFTER", 0.02)
    hub.push(large("one"))
    source = hub_source(hub, tmp_path)
    folder = await fetched(source)
    hub.push(large("two"))
    fault = hub.fault("/cdn/", hold=0)
    fetching = asyncio.create_task(fetched(source))
    await in_thread(lambda cancel: fault.seen.wait(PATIENCE))
    fetching.cancel()
    await asyncio.wait({fetching})
    assert threads.list_left_behind()
    assert threads.left_behind() is None  # or nothing would be loaded
    assert await fetched(source, str(folder)) == folder
    with pytest.raises(SourceUnavailable, match="a download into it is still under way"):
        await fetched(source)
    fault.release.set()
    while threads.list_left_behind():  # noqa: ASYNC110 - a thread ends, no event tells
        await asyncio.sleep(0)
    await fetched(source)


async def test_a_download_that_is_given_up_reads_nothing_any_more(
    hub: LocalHub, tmp_path: Path
) -> None:
    sha = hub.push(large())
    folder = await fetched(hub_source(hub, tmp_path))
    folder.rename(folder.with_name(f".partial-{sha}"))
    asked = hub.count("/cdn/")
    with pytest.raises(SourceUnavailable, match="was given up"):
        await in_thread(lambda cancel: given_up(hub, tmp_path, sha, cancel, kept=None))
    assert hub.count("/cdn/") == asked


async def test_a_download_that_is_given_up_deletes_nothing_any_more(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.push(large("one"))
    wanted_again = await fetched(hub_source(hub, tmp_path))
    second = hub.push({**large("two"), "config.json": b'{"two": true}'})  # nothing to read here
    with pytest.raises(SourceUnavailable, match="was given up"):
        await in_thread(lambda cancel: given_up(hub, tmp_path, second, cancel, kept=[second]))
    assert wanted_again.is_dir()


class NotAsked(Digests):
    def of(self, *_: object) -> str:
        pytest.fail("it was given up")


def given_up(
    hub: LocalHub, cache: Path, sha: str, cancel: threading.Event, *, kept: list[str] | None
) -> Snapshot:
    """A download that nobody wants any more when it begins."""
    cancel.set()
    asking = client.HubClient(REPO, client.HubOptions(endpoint=hub.url))
    lies_here = download.Download(
        asking,
        Snapshots(cache, REPO, digests=NotAsked()),
        sha,
        allow=sorted(SERVED),
        kept=kept,
        count=download.DownloadedBytes(),
        cancel=cancel,
    )
    try:
        return lies_here.run()
    finally:
        asking.hang_up()


async def test_a_long_hash_that_is_given_up_ends_and_holds_up_no_later_fetch(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha = hub.push(checkpoint("one", model__safetensors=SOUND))
    await fetched(hub_source(hub, tmp_path))
    hashing = threading.Event()

    def long(file: Readable, header: object, cancel: threading.Event, quiet: Quiet) -> Content:
        hashing.set()
        assert cancel.wait(PATIENCE)
        return examine(file, None, cancel=cancel)

    monkeypatch.setattr(digests, "examine", long)
    source = hub_source(hub, tmp_path, digests=Digests())
    fetching = asyncio.create_task(source.fetch(Revision(sha)))
    await in_thread(lambda cancel: hashing.wait(PATIENCE))
    fetching.cancel()
    await asyncio.wait({fetching})
    assert fetching.cancelled()
    assert threads.list_left_behind() == []


async def test_what_is_no_commit_is_not_asked_for(hub: LocalHub, tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match="is not a commit of"):
        await hub_source(hub, tmp_path).fetch(Revision("0" * 32, "the model's folder"))
    assert hub.asked == []
    assert cached(tmp_path) == set()


# --- what lies here ----------------------------------------------------------------------------


async def test_live_previous_and_wanted_stay_and_the_rest_goes(
    hub: LocalHub, tmp_path: Path
) -> None:
    kept: list[str] = []
    source = hub_source(hub, tmp_path, kept=lambda: kept[-2:])
    for number in range(5):
        kept.append(hub.push(large(str(number))))
        await fetched(source)
        assert cached(tmp_path) == set(kept[-2:])


async def test_a_commit_that_was_pruned_is_downloaded_again_for_who_goes_back_to_it(
    hub: LocalHub, tmp_path: Path
) -> None:
    files = large("one")
    hub.push(files)
    source = hub_source(hub, tmp_path, kept=list)
    folder = await fetched(source)
    hub.push(large("two"))
    await fetched(source)
    assert not folder.exists()
    assert served(await fetched(source, str(folder))) == {
        name: files[name] for name in SERVED & files.keys()
    }


async def test_a_snapshot_somebody_wrote_to_is_downloaded_again(
    hub: LocalHub, tmp_path: Path
) -> None:
    files = large()
    hub.push(files)
    source = hub_source(hub, tmp_path)
    folder = await fetched(source)
    verified = source.content_of(Revision(folder.name))
    assert verified == content_id(survey(folder))
    with (folder / "model.safetensors").open("r+b") as held:
        held.write(b"other bytes")
    assert source.content_of(Revision(folder.name)) == verified
    assert served(await fetched(source))["model.safetensors"] == files["model.safetensors"]


async def test_two_processes_do_not_download_into_one_folder(hub: LocalHub, tmp_path: Path) -> None:
    hub.push(large())
    fault = hub.fault("/cdn/", hold=1 << 20)
    first = asyncio.create_task(fetched(hub_source(hub, tmp_path)))
    await in_thread(lambda cancel: fault.seen.wait(PATIENCE))
    with pytest.raises(SourceUnavailable, match=r"give each its own \[source\] cache"):
        await fetched(hub_source(hub, tmp_path))
    fault.release.set()
    await first


async def test_a_download_that_has_no_room_is_not_begun(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push(large())
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(1 << 30, (1 << 30) - 1000, 1000))
    with pytest.raises(NotEnoughMemory, match="free some space, or set") as caught:
        await fetched(hub_source(hub, tmp_path))
    assert caught.value.code == "disk"
    assert hub.count("/cdn/") == 0


async def test_a_disk_that_fills_in_mid_download_is_left_as_it_was(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "ROOM_LEFT", -1 << 30)  # others fill it after we looked
    files = large()
    sha = hub.push(files)
    with small_disk(tmp_path / "cache") as cache:
        filler = cache / "somebody's"
        filler.write_bytes(bytes(6 << 20))
        source = hub_source(hub, cache)
        with pytest.raises(NotEnoughMemory, match="No space left on device"):
            await fetched(source)
        assert cached(cache) == set()
        filler.unlink()
        await fetched(source)
        assert cached(cache) == {sha}


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root may mount the small disk this needs")
    folder.mkdir()
    mount: list[Any] = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here, and this needs a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def test_a_cache_that_cannot_be_written_to_says_which_setting(
    hub: LocalHub, tmp_path: Path
) -> None:
    hub.push(large())
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(SourceUnavailable, match=r"check \[source\] cache"):
        await fetched(hub_source(hub, tmp_path / "cache"))
