"""Two daemons never share a state folder, and no folder keeps one from serving."""

import errno
import fcntl
import os
import shutil
from pathlib import Path

import pytest

from hotreload.errors import ConfigError
from hotreload.life.saved.state_lock import LOCK, StateFolder, user_of

FIRST, SECOND = Path("/run/first.sock"), Path("/run/second.sock")


def test_the_second_to_come_is_told_who_has_it(tmp_path: Path) -> None:
    state = tmp_path / "made" / "on demand"
    with StateFolder(state).hold(FIRST):
        told = rf"\[state\] directory: {state} is in use .*pid {os.getpid()}, socket {FIRST}"
        with pytest.raises(ConfigError, match=told), StateFolder(state).hold(SECOND):
            pass
        assert user_of(state)["socket"] == str(FIRST)
    with StateFolder(state).hold(SECOND):
        assert user_of(state)["pid"] == os.getpid()
        assert user_of(state)["socket"] == str(SECOND)


@pytest.mark.parametrize("text", ["", "no JSON", "[]"])
def test_one_that_has_not_written_its_name_yet_has_it_all_the_same(
    tmp_path: Path, text: str
) -> None:
    with StateFolder(tmp_path).hold(FIRST):
        (tmp_path / LOCK).write_text(text)
        with (
            pytest.raises(ConfigError, match="by another hotreload;"),
            StateFolder(tmp_path).hold(SECOND),
        ):
            pass


def test_a_folder_that_cannot_be_written_to_is_told_and_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    with StateFolder(tmp_path / "file" / "state").hold(FIRST):
        assert "state.not_locked" in caplog.text


def test_a_file_system_without_locks_is_told_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(file: int, what: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with StateFolder(tmp_path).hold(FIRST):
        assert "No locks available" in vars(caplog.records[0])["error"]


def test_a_folder_that_is_moved_is_written_to_where_it_lies_and_is_well_when_it_is_back(
    tmp_path: Path,
) -> None:
    path, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    state = StateFolder(path)
    with state.hold(FIRST):
        path.rename(elsewhere)
        assert not state.is_in_place
        written(state, "a")
        assert (elsewhere / "a").exists()
        assert f"{path} is gone; what changes is written to {elsewhere}" in str(state.moved)
        assert not path.exists()  # it could not be moved back
        elsewhere.rename(path)
        assert state.is_in_place
        written(state, "b")
        assert (path / "b").exists()
        assert state.moved is None


def test_a_folder_that_another_daemon_made_under_the_name_is_left_to_it_until_it_ends(
    tmp_path: Path,
) -> None:
    path, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    state = StateFolder(path)
    with state.hold(FIRST):
        path.rename(elsewhere)
        with StateFolder(path).hold(SECOND):
            written(state, "a")
            assert f"another hotreload (pid {os.getpid()}, socket {SECOND}) uses it" in str(
                state.moved
            )
            assert [(at / "a").exists() for at in (path, elsewhere)] == [False, True]
        written(state, "b")
        assert state.moved is None
        assert (path / "b").exists()
        with pytest.raises(ConfigError, match=str(FIRST)), StateFolder(path).hold(SECOND):
            pass


@pytest.mark.parametrize("gone", ["the folder", "the lock alone"])
def test_what_is_deleted_is_made_and_taken_anew(tmp_path: Path, gone: str) -> None:
    path = tmp_path / "state"
    state = StateFolder(path)
    with state.hold(FIRST):
        shutil.rmtree(path) if gone == "the folder" else (path / LOCK).unlink()
        assert not state.is_in_place
        written(state, "a")
        assert state.moved is None
        assert state.is_in_place
        assert (path / "a").exists()
        with pytest.raises(ConfigError, match=str(FIRST)), StateFolder(path).hold(SECOND):
            pass


def test_what_stands_under_the_name_and_is_no_folder_is_told(tmp_path: Path) -> None:
    path = tmp_path / "state"
    state = StateFolder(path)
    with state.hold(FIRST):
        path.rename(tmp_path / "elsewhere")
        path.write_text("no folder")
        written(state, "a")
        assert "cannot be used" in str(state.moved)
        assert (tmp_path / "elsewhere" / "a").exists()


def written(state: StateFolder, name: str) -> None:
    """Write as a save does."""
    state.follow()
    with state.open_folder() as folder:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=folder))
