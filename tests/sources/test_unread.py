"""A finished folder is named by what a stat says, until whoever stages it has read it."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from hotreload.checkpoint import digests
from hotreload.checkpoint.digests import Digests, content_id, unread_id
from hotreload.checkpoint.survey import survey
from hotreload.sources import seen_revisions
from hotreload.types import Revision
from tests.sources.watching import arrive, directory, watching, write

WEIGHTS = "model.safetensors"


follow = partial(watching, reads_once=lambda: True)
"""Watch a folder where finished ones may stay unread."""


def staged(folder: Path, digests: Digests, revision: Revision) -> str:
    """Read it all, as whoever stages it does; its content id."""
    content = content_id(survey(folder), digests)
    digests.note_content(revision.id, content)
    return content


async def test_what_came_by_a_rename_is_wished_unread_and_known_by_its_content_once_it_was_staged(
    root: Path,
) -> None:
    digests = Digests()
    async with follow(root, digests=digests) as watch:
        folder = arrive(root / "step_1")
        await watch.wished("step_1")
        (wish,) = watch.wishes
        assert wish.is_unread
        assert await watch.source.resolve("step_1") == wish
        assert await watch.source.fetch(wish) == folder
        content = Revision(staged(folder, digests, wish))
        assert await watch.source.fetch(wish) == folder
        for look in (False, True):  # at once, and as its next look says
            if look:
                await watch.look()
            assert watch.source.list_ids() == [content.id]
            assert [each.revision for each in watch.source.list_seen()] == [content]
        assert watch.wishes == [wish], "the same wish came again"
        assert await watch.source.fetch(content) == folder
        assert await watch.source.resolve("step_1") == content


async def test_a_marker_says_that_a_folder_is_finished(root: Path) -> None:
    async with follow(root, marker="_DONE") as watch:
        folder = write(root / "step_1")
        await watch.look()
        assert watch.wishes == []
        (folder / "_DONE").touch()
        await watch.wished("step_1")
        assert watch.wishes[0].is_unread


async def test_what_was_written_in_place_is_named_by_its_content(root: Path) -> None:
    async with follow(root) as watch:
        folder = write(root / "step_1")
        await watch.wished("step_1")
        assert watch.wishes[0].id == content_id(survey(folder))


async def test_what_is_there_at_the_first_look_is_named_by_its_content(root: Path) -> None:
    folder = arrive(root / "step_1")
    async with follow(root, marker="_DONE") as watch:
        (folder / "_DONE").touch()
        await watch.wished("step_1")
    async with follow(root, marker="_DONE") as watch:
        await watch.wished("step_1")
        assert watch.wishes[0].id == content_id(survey(folder))


async def test_on_a_network_file_system_all_is_named_by_its_content(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seen_revisions, "remote_file_system", lambda folder: "nfs4")
    async with follow(root) as watch:
        folder = arrive(root / "step_1")
        await watch.wished("step_1")
        assert watch.wishes[0].id == content_id(survey(folder))


async def test_what_an_earlier_life_has_read_is_known_unread(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = arrive(root / "step_1")
    by_stat = unread_id(survey(folder), Digests())
    assert by_stat is not None
    monkeypatch.setattr(digests, "examine", None)  # nobody reads it whole
    async with watching(root, digests=Digests({by_stat: "0" * 32})) as watch:
        await watch.wished("step_1")
        assert watch.wishes[0].id == "0" * 32


async def test_what_was_rewritten_with_its_times_kept_is_read_again(root: Path) -> None:
    digests, folder = Digests(), arrive(root / "step_1")
    source = directory(root, digests=digests, reads_once=lambda: True)
    wish = await source.resolve("step_1")
    before = staged(folder, digests, wish)
    times = (folder / WEIGHTS).stat()
    with (folder / WEIGHTS).open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"!")
    os.utime(folder / WEIGHTS, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert unread_id(survey(folder), digests) == wish.id
    assert (await source.resolve("step_1")).id == content_id(survey(folder)) != before


@pytest.mark.parametrize("touch", [lambda file: file.chmod(0o600), os.utime])
async def test_only_who_writes_moves_the_id_of_a_stat(
    root: Path, touch: Callable[[Path], None]
) -> None:
    folder = arrive(root / "step_1")
    before = unread_id(survey(folder), Digests())
    touch(folder / WEIGHTS)
    is_chmod = (folder / WEIGHTS).stat().st_mode & 0o777 == 0o600
    assert (unread_id(survey(folder), Digests()) == before) is is_chmod
