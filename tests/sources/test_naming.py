import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hotreload.errors import BadRequest, NothingOfThatName, SourceUnavailable
from hotreload.sources import seen_revisions
from hotreload.types import as_text
from tests.sources.watching import (
    directory,
    forget,
    watching,
    write,
)


def chmod(file: Path) -> None:
    file.chmod(0o600)


def hard_link(file: Path) -> None:
    os.link(file, file.parent.parent / "backup")


def touch(file: Path) -> None:
    os.utime(file)


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


@pytest.mark.parametrize("touch", [chmod, hard_link, touch])
async def test_fetch_gives_a_folder_no_byte_of_which_was_touched(
    root: Path, touch: Callable[[Path], None]
) -> None:
    write(root / "step_1")
    async with watching(root, settle=60.0) as watch:  # no look names it anew
        revision = await watch.source.resolve("step_1")
        touch(root / "step_1" / "model.safetensors")
        assert await watch.source.fetch(revision) == root / "step_1"


async def test_bytes_that_changed_unseen_are_wished_by_their_new_name(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store through a mapping moves no time of the file: only who reads it hears of it."""
    says = ["1" * 32]
    monkeypatch.setattr(seen_revisions, "content_id", lambda *_: says[-1])
    async with watching(root) as watch:
        write(root / "step_1")
        await watch.wished("step_1")
        says.append("2" * 32)
        await watch.look()
        assert [each.id for each in watch.wishes] == ["1" * 32]
        with pytest.raises(SourceUnavailable, match="changed since"):
            await watch.source.fetch(watch.wishes[0])
        await watch.wished("step_1", "step_1")
        assert watch.wishes[1].id == "2" * 32


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
    source = directory(root, roots=[tmp_path / "models"])
    by_name = await source.resolve("step_1")
    for name in ("run/step_1", str(root / "run" / "step_1"), by_name.id):
        assert await source.resolve(name) == by_name
    assert (await source.resolve("base")).label == "base"
    assert (await source.resolve(str(tmp_path / "models" / "base"))).label == "base"


ODD_NAMES = [
    "step_1\u3000of\u00a0run",
    "step_1\u200b",
    "step_1\xad",
    "step_1 \x1b[31m",
    os.fsdecode(b"step_1 no text \xff"),
]


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_every_name_that_a_file_system_allows_can_be_named(root: Path, name: str) -> None:
    folder = write(root / "run" / name, "odd")
    source = directory(root)
    revision = await source.resolve(str(folder))
    for said in (name, as_text(name), as_text(str(folder)), f"run/{name}"):
        assert await source.resolve(said) == revision
    assert await directory(root).fetch(revision) == folder


async def test_what_is_said_of_an_odd_name_is_harmless_for_a_terminal(root: Path) -> None:
    with pytest.raises(NothingOfThatName, match=r"^'step\\x1b\[2J': no such folder"):
        await directory(root).resolve("step\x1b[2J")


@pytest.mark.parametrize("name", ["../elsewhere", "/", "/etc", "link"])
async def test_what_lies_outside_of_the_roots_is_no_name(
    tmp_path: Path, root: Path, name: str
) -> None:
    write(tmp_path / "elsewhere")
    (root / "link").symlink_to(tmp_path / "elsewhere")
    allowed = rf"outside of the allowed folders: {root}; \[server\] update_roots allows more"
    with pytest.raises(BadRequest, match=allowed):
        await directory(root).resolve(name)


@pytest.mark.parametrize("name", ["nothing", "", "file", "a\0b", "x" * 5000])
async def test_what_is_no_folder_is_no_name(root: Path, name: str) -> None:
    (root / "file").touch()
    with pytest.raises((BadRequest, SourceUnavailable)):
        await directory(root, settle=0.01).resolve(name)


async def test_a_name_that_no_folder_has_is_told_apart_from_one_that_may_not_be_asked_for(
    root: Path,
) -> None:
    with pytest.raises(NothingOfThatName, match=f"nothing: no such folder below {root}"):
        await directory(root).resolve("nothing")


async def test_naming_a_folder_that_is_being_written_says_what_is_missing(root: Path) -> None:
    path = write(root / "step_1") / "model.safetensors"
    whole = path.read_bytes()
    os.truncate(path, 100)
    source = directory(root, settle=0.3)
    resolving = asyncio.create_task(source.resolve("step_1"))
    await asyncio.sleep(0.05)
    path.write_bytes(whole[:120])
    with pytest.raises(SourceUnavailable, match=r"step_1: model\.safetensors: 120 B of"):
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
    with pytest.raises(SourceUnavailable, match=r"step_3: model\.safetensors: 100 B of"):
        await source.resolve(None)
    await source.close()
