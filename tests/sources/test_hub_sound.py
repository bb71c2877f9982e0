"""How a commit that lies here is known to be whole, and how often its bytes are read for that."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotreload.checkpoint import digests
from hotreload.checkpoint.check import check_checkpoint
from hotreload.checkpoint.content import Content, examine
from hotreload.checkpoint.digests import Digests, content_id, unread_id
from hotreload.checkpoint.file_reader import Readable
from hotreload.checkpoint.fit import Policy
from hotreload.checkpoint.known_names import INDEX
from hotreload.checkpoint.survey import survey
from hotreload.errors import SourceUnavailable
from hotreload.sources.hub.snapshots import MANIFEST, HubDigest
from hotreload.sources.huggingface import HuggingFaceSource
from hotreload.types import Revision
from tests.hub.local_hub import LocalHub, local_hub
from tests.sources.following import hub_source
from tests.sources.test_hub_fetching import fetched, large, served
from tests.sources.watching import shard


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with local_hub() as made:
        yield made


def sharded(*contents: str) -> dict[str, bytes]:
    """A commit of some shards, sound as far as a look at them tells."""
    names = {f"{name}.safetensors": name for name in contents}
    weight_map = json.dumps({"weight_map": {name: file for file, name in names.items()}})
    shards = {file: shard(name, name) for file, name in names.items()}
    return {INDEX: weight_map.encode(), "config.json": b"{}", **shards}


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The weights that were read whole: for their content, and to hold them against the hub's."""
    read = dict[str, list[str]](content=[], hub=[])
    catch_up = HubDigest.catch_up

    def examined(file: Readable, *about: Any, **more: Any) -> Content:
        read["content"].append(file.name)
        return examine(file, *about, **more)

    def caught_up(self: HubDigest, path: Path) -> None:
        before = self._taken
        catch_up(self, path)
        if self._taken > before:
            read["hub"].append(path.name)

    monkeypatch.setattr(digests, "examine", examined)
    monkeypatch.setattr(HubDigest, "catch_up", caught_up)
    return read


def weights_of(read: dict[str, list[str]]) -> dict[str, list[str]]:
    """What was read since it was asked last."""
    found = {kind: [n for n in names if n.endswith("safetensors")] for kind, names in read.items()}
    for names in read.values():
        names.clear()
    return found


NOTHING: dict[str, list[str]] = {"content": [], "hub": []}


def by_stat(hub: LocalHub, cache: Path) -> HuggingFaceSource:
    """A source of another life, while something serves: the first reading may wait."""
    return hub_source(hub, cache, reads_once=lambda: True, digests=Digests())


async def test_a_download_and_who_finds_it_read_no_weights(
    hub: LocalHub, tmp_path: Path, read: dict[str, list[str]]
) -> None:
    sha = Revision(hub.push(sharded("a", "b")))
    for life in range(3):
        source = by_stat(hub, tmp_path)
        folder = await source.fetch(sha)
        assert source.content_of(sha) == unread_id(survey(folder), Digests())
        assert (life, weights_of(read)) == (life, NOTHING)
    assert hub.count("/cdn/") == 2


async def test_a_start_reads_it_for_its_content_and_the_checks_take_that_over(
    hub: LocalHub, tmp_path: Path, read: dict[str, list[str]]
) -> None:
    sha = Revision(hub.push(sharded("a")))
    await by_stat(hub, tmp_path).fetch(sha)
    known = Digests()
    source = hub_source(hub, tmp_path, digests=known)
    folder = await source.fetch(sha)
    content = source.content_of(sha)
    assert weights_of(read) == {"content": ["a.safetensors"], "hub": []}
    checked = check_checkpoint(
        sha, folder, served=None, policy=Policy(), content_id=content, digests=known
    )
    assert (content, checked.revision) == (content_id(survey(folder)), sha)
    assert known.contents[sha.id] == content
    assert weights_of(read)["content"] == ["a.safetensors"], "that of this test alone"


@pytest.mark.parametrize("is_older", [True, False])
async def test_a_snapshot_of_another_place_or_age_is_held_against_the_hubs_digests_once(
    hub: LocalHub, tmp_path: Path, read: dict[str, list[str]], is_older: bool
) -> None:
    sha = Revision(hub.push(sharded("a")))
    folder = await by_stat(hub, tmp_path / "first").fetch(sha)
    if is_older:
        said = json.loads((folder / MANIFEST).read_bytes())
        del said["seen"]
        said["content"] = content_id(survey(folder))
        (folder / MANIFEST).write_text(json.dumps(said))
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    weights_of(read)
    hub.fault(".", drop=True, times=100)
    source = by_stat(hub, tmp_path / "second")
    folder = await source.fetch(sha)
    assert weights_of(read) == {"content": [], "hub": ["a.safetensors"]}
    assert await by_stat(hub, tmp_path / "second").fetch(sha) == folder
    assert weights_of(read) == NOTHING


async def test_bytes_that_rotted_are_downloaded_again_and_the_others_are_not(
    hub: LocalHub, tmp_path: Path
) -> None:
    files = sharded("a", "b")
    sha = Revision(hub.push(files))
    known = Digests()
    folder = await hub_source(hub, tmp_path, digests=known).fetch(sha)
    rot(folder / "b.safetensors")
    next_life = hub_source(hub, tmp_path, digests=Digests(known.contents))
    assert served(await next_life.fetch(sha)) == files
    assert hub.count("/cdn/") == 3


def rot(file: Path) -> None:
    """Another last byte, and the times of before but for the one that nobody can set."""
    times = file.stat()
    with file.open("r+b") as opened:
        opened.seek(-1, os.SEEK_END)
        opened.write(b"!")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize("is_touched", [True, False])
async def test_what_two_commits_share_is_read_again_only_where_somebody_wrote_to_it(
    hub: LocalHub, tmp_path: Path, read: dict[str, list[str]], is_touched: bool
) -> None:
    source = by_stat(hub, tmp_path)
    before = await source.fetch(Revision(hub.push(sharded("a", "b"))))
    if is_touched:
        rot(before / "b.safetensors")
    files = {**sharded("a", "b"), "config.json": b'{"new": true}'}
    assert served(await source.fetch(Revision(hub.push(files)))) == files
    compared = {"a.safetensors", "b.safetensors"} if is_touched else set()
    assert set(weights_of(read)["hub"]) == compared
    assert hub.count("/cdn/") == 2 + is_touched


async def test_of_a_download_that_goes_on_only_what_came_before_is_read(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.push(large())
    hub.fault("/cdn/", cut=2 << 20)
    broken = hub.fault("/cdn/", status=503, times=1000)
    with pytest.raises(SourceUnavailable):
        await fetched(hub_source(hub, tmp_path))
    broken.times, catch_up, counts = 0, HubDigest.catch_up, list[int]()

    def counted(self: HubDigest, path: Path) -> None:
        before = self._taken
        catch_up(self, path)
        counts.append(self._taken - before)

    monkeypatch.setattr(HubDigest, "catch_up", counted)
    await fetched(hub_source(hub, tmp_path))
    assert sum(counts) == 2 << 20
