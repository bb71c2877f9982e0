import asyncio
import logging
import os
from pathlib import Path

import pytest

from hotreload.core.ledger import Ledger
from hotreload.state import StateFile, write_whole
from hotreload.types import Generation, Revision


def ledger(number: int = 3) -> Ledger:
    made = Ledger()
    made.went_live(Generation(number, Revision("abc", "step_3"), "fp", 1.0), "/checkpoints/step_3")
    return made


async def test_what_was_saved_is_read_by_the_next_run(tmp_path: Path) -> None:
    await StateFile(tmp_path / "made" / "on demand").save(ledger())
    again = StateFile(tmp_path / "made" / "on demand").read()
    assert again.last_good == ledger().last_good
    assert list(tmp_path.glob("**/*.new")) == []


def test_the_first_run_knows_nothing(tmp_path: Path) -> None:
    assert StateFile(tmp_path).read() == Ledger()


@pytest.mark.parametrize("data", [b"", b"\0" * 4096, b'{"version": 1, "gener', b'{"version": 99}'])
def test_a_state_that_cannot_be_read_is_set_aside_and_told(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state.json").write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert StateFile(tmp_path).read() == Ledger()
    assert "state.set_aside" in caplog.text
    (aside,) = tmp_path.glob("*.unreadable")
    assert aside.read_bytes() == data


async def test_a_disk_that_refuses_is_told_once_and_serving_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    state = StateFile(blocked / "state")
    for _ in range(3):
        await state.save(ledger())
    assert caplog.text.count("state.not_saved") == 1
    blocked.unlink()
    await state.save(ledger())
    assert state.read().last_good is not None


async def test_saves_land_in_order(tmp_path: Path) -> None:
    state = StateFile(tmp_path)
    await asyncio.gather(*(state.save(ledger(number)) for number in range(1, 20)))
    last = state.read().last_good
    assert last is not None
    assert last.number == 19


def test_a_write_that_fails_half_way_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    write_whole(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"new and longer")
    assert path.read_bytes() == b"old"
