import errno
import os
from pathlib import Path

import pytest

from tests.sources.watching import (
    arrive,
    forget,
    watching,
    write,
)


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
