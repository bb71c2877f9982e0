"""What is mounted late is waited for; a name that is wrong is not."""

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from hotreload.life.start import whereabouts
from hotreload.life.start.whereabouts import (
    first_missing,
    missing_mount,
    planned_mount,
    wait_for_state_mount,
)


def tables(folder: Path, fstab: str, mounted: str = "") -> dict[str, Path]:
    files = {"fstab": folder / "fstab", "mountinfo": folder / "mountinfo"}
    files["fstab"].write_text(f"# <file system> <mount point>\n\nswap none swap sw 0 0\n{fstab}")
    files["mountinfo"].write_text(f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n{mounted}")
    return files


def line(point: str, kind: str = "nfs4") -> str:
    return f"30 22 0:40 / {point} rw - {kind} server:/x rw\n"


PLANS = "server:/x /srv/my\\040nfs nfs4 defaults 0 0\n/dev/sdb /srv/my\\040nfs/deep ext4 rw 0 0\n"


@pytest.mark.parametrize(
    ("path", "mounted", "missing"),
    [
        ("/srv/my nfs/models/a", "", "/srv/my nfs"),
        ("/srv/my nfs", "", "/srv/my nfs"),
        ("/srv/my nfs/models/a", line("/srv/my\\040nfs"), None),
        ("/srv/my nfs/deep/a", line("/srv/my\\040nfs"), "/srv/my nfs/deep"),
        ("/srv/my nfs/deep/a", line("/srv/my\\040nfs/deep"), None),
        ("/srv/my nfs/models/a", line("/srv/my\\040nfs", "autofs"), "/srv/my nfs"),
        ("/srv/my nfs/a", line("/srv/my\\040nfs", "autofs") + line("/srv/my\\040nfs"), None),
        ("/srv/else", "", None),
    ],
)
def test_what_the_machine_is_to_mount_and_has_not_is_missing(
    tmp_path: Path, path: str, mounted: str, missing: str | None
) -> None:
    found = planned_mount(Path(path), **tables(tmp_path, PLANS, mounted))
    assert found == (Path(missing) if missing else None)


def test_without_tables_nothing_is_planned(tmp_path: Path) -> None:
    assert planned_mount(Path("/srv/a"), tmp_path / "none", tmp_path / "none") is None


def test_an_empty_folder_on_the_way_may_be_one_that_nothing_is_mounted_on(tmp_path: Path) -> None:
    point = tmp_path / "point"
    point.mkdir()
    assert missing_mount(point / "models" / "a") == point
    assert missing_mount(point) == point
    (point / "other").touch()
    assert missing_mount(point / "models" / "a") is None  # somebody mistook the name
    assert missing_mount(point / "other" / "a") is None
    assert first_missing([None, point, tmp_path / "fresh"]) is None
    (tmp_path / "fresh").mkdir()
    assert first_missing([None, point, tmp_path / "fresh"]) == tmp_path / "fresh"


@pytest.mark.parametrize(
    ("code", "is_missing"),
    [(errno.ENOTCONN, True), (errno.ESTALE, True), (errno.EIO, True), (errno.EACCES, False)],
)
def test_a_mount_whose_server_is_away_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, is_missing: bool
) -> None:
    def scandir(path: Path) -> Any:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "scandir", scandir)
    assert (missing_mount(tmp_path) == tmp_path) is is_missing


async def test_the_state_is_waited_for_where_the_machine_is_to_mount_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An empty folder is none to wait for: the first start makes its own."""
    (tmp_path / "state").mkdir()
    await wait_for_state_mount(tmp_path / "state")
    looks = [tmp_path, tmp_path, None]
    monkeypatch.setattr(whereabouts, "planned_mount", lambda path: looks.pop(0))
    monkeypatch.setattr(whereabouts, "MOUNT_SECONDS", 0)
    async with asyncio.timeout(10):
        await wait_for_state_mount(tmp_path / "state")
    assert not looks
    (told,) = [record for record in caplog.records if record.message == "boot.not_mounted"]
    assert told.path == str(tmp_path)  # type: ignore[attr-defined]
