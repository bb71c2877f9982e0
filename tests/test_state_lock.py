"""Two daemons never share a state folder, and no folder keeps one from serving."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from hotreload.errors import ConfigError
from hotreload.life.state_lock import NAME, sole_user, user_of

FIRST, SECOND = Path("/run/first.sock"), Path("/run/second.sock")


def test_the_second_to_come_is_told_who_has_it(tmp_path: Path) -> None:
    state = tmp_path / "made" / "on demand"
    with sole_user(state, FIRST):
        told = rf"\[state\] directory: {state} is in use .*pid {os.getpid()}, socket {FIRST}"
        with pytest.raises(ConfigError, match=told), sole_user(state, SECOND):
            pass
        assert user_of(state)["socket"] == str(FIRST)
    with sole_user(state, SECOND):
        assert user_of(state) == {"pid": os.getpid(), "socket": str(SECOND)}


@pytest.mark.parametrize("text", ["", "no JSON", "[]"])
def test_one_that_has_not_written_its_name_yet_has_it_all_the_same(
    tmp_path: Path, text: str
) -> None:
    with sole_user(tmp_path, FIRST):
        (tmp_path / NAME).write_text(text)
        with pytest.raises(ConfigError, match="by another hotreload;"), sole_user(tmp_path, SECOND):
            pass


def test_a_folder_that_cannot_be_written_to_is_told_and_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    with sole_user(tmp_path / "file" / "state", FIRST):
        assert "state.not_locked" in caplog.text


def test_a_file_system_without_locks_is_told_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(file: int, what: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with sole_user(tmp_path, FIRST):
        assert "No locks available" in vars(caplog.records[0])["error"]
