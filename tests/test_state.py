import asyncio
import logging
import os
from pathlib import Path

import pytest

from hotreload.core.ledger import Ledger, Overrule
from hotreload.events import Event, StateSaved
from hotreload.life.state import StateFile, write_whole
from hotreload.life.state_json import VERSION
from hotreload.types import By, Generation, Phase, Revision
from tests.waiting import PATIENCE

VERSION_1 = """{
 "version": 1,
 "generations": [
  {"number": 1, "revision": {"id": "aaaa", "label": "step_1"}, "fingerprint": "f1",
   "path": "/checkpoints/step_1", "since": 1700000000.5},
  {"number": 2, "revision": {"id": "bbbb", "label": "step_2"}, "fingerprint": "f2",
   "path": "/checkpoints/step_2", "since": 1700000100.5}
 ],
 "refused": [
  {"revision": {"id": "cccc", "label": "step_3"}, "at": 1700000200.5,
   "reason": {"code": "shape", "message": "lm_head is too wide", "findings": ["lm_head"]}}
 ],
 "history": [
  {"revision": {"id": "cccc", "label": "step_3"}, "outcome": "rejected",
   "reason": {"code": "shape", "message": "lm_head is too wide", "findings": ["lm_head"]},
   "phases": {"fetching": 0.1, "validating": 0.2}, "pause_seconds": 0.0,
   "finished_at": 1700000200.5, "generation": null, "rolled_back": false, "fingerprints": null},
  {"revision": {"id": "bbbb", "label": "step_2"}, "outcome": "live", "reason": null,
   "phases": {"staging": 1.5, "swapping": 0.001}, "pause_seconds": 0.02,
   "finished_at": 1700000100.5, "generation": 2, "rolled_back": false,
   "fingerprints": ["f1", "f2"]}
 ],
 "pinned": true,
 "under_way": null,
 "crashes": {"dddd": 1}
}"""
"""As the first version that had a state file wrote it."""


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


@pytest.mark.parametrize("data", [b"", b"\0" * 4096, b'{"version": 1, "gener', b"{}", b"[]"])
def test_a_state_that_cannot_be_read_is_set_aside_and_told(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state.json").write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert StateFile(tmp_path).read() == Ledger()
    assert "state.set_aside" in caplog.text
    (aside,) = tmp_path.glob("*.unreadable")
    assert aside.read_bytes() == data


async def test_a_state_that_the_disk_does_not_give_is_told_and_serving_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state.json").mkdir()
    state = StateFile(tmp_path)
    with caplog.at_level(logging.WARNING):
        assert state.read() == Ledger()
        why = await state.save(ledger())
    (unread,) = caplog.records
    assert unread.message == "state.unreadable"
    assert vars(unread)["path"] == str(tmp_path / "state.json")
    assert "Is a directory" in vars(unread)["error"]
    assert why is not None
    assert why.startswith(f"{tmp_path / 'state.json'} cannot be written: ")
    assert list(tmp_path.glob("*.unreadable")) == []
    (tmp_path / "state.json").rmdir()
    await state.save(ledger())
    assert state.read().last_good == ledger().last_good


async def test_a_state_of_a_newer_version_is_told_and_left_for_the_newer_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    newer = b'{"version": 99, "what": "this one cannot know"}'
    (tmp_path / "state.json").write_bytes(newer)
    state = StateFile(tmp_path)
    with caplog.at_level(logging.ERROR):
        assert state.read() == Ledger()
    (told,) = caplog.records
    assert told.message == "state.newer"
    assert "version 99, and this hotreload knows" in vars(told)["error"]
    assert "is left as it is" in str(await state.save(ledger()))
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [newer]


async def test_a_state_of_version_2_is_understood_and_its_pin_holds_though_nobody_is_named(
    tmp_path: Path,
) -> None:
    version_2 = VERSION_1.replace(
        '"version": 1', '"version": 2, "lost_at": 7.5, "numbers_given": 9'
    )
    (tmp_path / "state.json").write_text(version_2)
    known = StateFile(tmp_path).read()
    assert (known.lost_at, known.numbers_given, known.pinned) == (7.5, 9, True)
    assert (known.pinned_by, known.overruled, [each.by for each in known.history]) == (
        None,
        None,
        [None, None],
    )


async def test_who_did_what_by_hand_is_read_by_the_next_run(tmp_path: Path) -> None:
    old, new, by = Revision("abc", "step_3"), Revision("def", "step_4"), By("pin", 1, 2, 3.5, "why")
    made = ledger()
    made.wish(new)
    made.overrule(old, by)
    made.set_pinned(True, by)
    await StateFile(tmp_path).save(made)
    again = StateFile(tmp_path).read()
    assert again.overruled == Overrule(old, new, by)
    assert again.pinned_by == by


async def test_a_state_of_version_1_is_understood_and_written_anew(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(VERSION_1)
    state = StateFile(tmp_path)
    known = state.read()
    place = known.last_good
    assert place is not None
    assert (place.number, place.path) == (2, "/checkpoints/step_2")
    assert list(known.refused) == ["cccc"]
    assert [attempt.outcome for attempt in known.history] == ["rejected", "live"]
    assert known.history[1].phases[Phase.STAGING] == 1.5
    assert known.pinned
    assert known.crashes == {"dddd": 1}
    await state.save(known)
    assert f'"version": {VERSION}' in (tmp_path / "state.json").read_text()
    assert StateFile(tmp_path).read() == known


async def test_a_disk_that_refuses_is_told_once_and_once_that_it_is_well_again(
    tmp_path: Path,
) -> None:
    blocked, told = tmp_path / "file", list[Event]()
    blocked.write_text("not a folder")
    state = StateFile(blocked / "state", told.append)
    whys = [await state.save(ledger()) for _ in range(3)]
    assert told == [StateSaved(whys[0])]
    assert all("Not a directory" in str(why) for why in whys)
    blocked.unlink()
    assert await state.save(ledger()) is None
    assert await state.save(ledger()) is None
    assert told[1:] == [StateSaved(None)]
    assert state.read().last_good is not None


async def test_what_could_not_be_saved_is_saved_when_the_disk_is_well_again(
    tmp_path: Path,
) -> None:
    blocked, told = tmp_path / "file", asyncio.Queue[Event]()
    blocked.write_text("not a folder")
    state = StateFile(blocked / "state", told.put_nowait)
    trying = asyncio.create_task(state.keep_trying(ledger(), pause=0.001))
    try:
        await state.save(ledger())
        assert (await told.get()) != StateSaved(None)
        blocked.unlink()
        async with asyncio.timeout(PATIENCE):
            assert (await told.get()) == StateSaved(None)
    finally:
        trying.cancel()
    assert state.read().last_good == ledger().last_good


async def test_saves_land_in_order(tmp_path: Path) -> None:
    state = StateFile(tmp_path)
    await asyncio.gather(*(state.save(ledger(number)) for number in range(1, 20)))
    last = state.read().last_good
    assert last is not None
    assert last.number == 19


def test_what_is_written_is_on_the_disk_before_it_has_its_name_and_the_name_before_we_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, done = tmp_path / "state.json", list[tuple[str, str]]()
    fsync, rename = os.fsync, Path.rename

    def noted_fsync(descriptor: int) -> None:
        opened = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        whole = opened.is_dir() or opened.read_bytes() == b"new"
        done.append(("fsync" if whole else "fsync too early", opened.name))
        fsync(descriptor)

    def noted_rename(old: Path, new: Path) -> Path:
        done.append((f"rename {old.name}", new.name))
        return rename(old, new)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert done == [
        ("fsync", "state.new"),
        ("rename state.new", "state.json"),
        ("fsync", tmp_path.name),
    ]


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
