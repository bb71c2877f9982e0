import asyncio
import threading
from pathlib import Path

import pytest

from hotreload.attempts import By
from hotreload.core.ledger import Ledger, Overrule
from hotreload.events import Event, StateSaved, TroubleNews
from hotreload.life.saved.state import StateFile
from hotreload.life.saved.state_json import VERSION
from hotreload.troubles import STATE_DAMAGED, STATE_MOVED
from hotreload.types import Generation, Phase, Revision
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


async def test_a_number_that_was_noted_and_not_given_is_given_to_the_next(tmp_path: Path) -> None:
    state, known = StateFile(tmp_path), ledger(3)
    assert await state.note_next_number(known) is None
    await state.save(known)  # somebody pinned, and the attempt is still under way
    assert StateFile(tmp_path).read().next_number == 5
    known.promised = 0  # it came to nothing
    await state.save(known)
    assert StateFile(tmp_path).read().next_number == 4


async def test_a_number_whose_attempt_was_cancelled_as_it_was_noted_is_given_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, known, noting, may_end = (
        StateFile(tmp_path),
        ledger(3),
        threading.Event(),
        threading.Event(),
    )
    note = state._note

    def slow(number: int) -> None:
        noting.set()
        assert may_end.wait(PATIENCE)
        note(number)

    monkeypatch.setattr(state, "_note", slow)
    attempt = asyncio.create_task(state.note_next_number(known))
    await asyncio.to_thread(noting.wait, PATIENCE)
    attempt.cancel()
    may_end.set()
    await asyncio.wait({attempt})
    assert attempt.cancelled()
    await state.save(known)
    assert StateFile(tmp_path).read().next_number == 4


def test_the_first_run_knows_nothing(tmp_path: Path) -> None:
    assert StateFile(tmp_path).read() == Ledger()


async def test_a_state_that_the_disk_does_not_give_is_told_and_kept_aside(tmp_path: Path) -> None:
    told = list[Event]()
    (tmp_path / "state.json").mkdir()
    state = StateFile(tmp_path, told.append)
    assert state.read().next_number == 1
    assert "state.json cannot be read: Is a directory" in str(await damage(state, told))
    assert await state.save(ledger()) is None
    (aside,) = tmp_path.glob("*.unreadable")
    assert aside.is_dir()
    assert state.read().last_good == ledger().last_good


async def damage(state: StateFile, told: list[Event]) -> str | None:
    """What it tells of what it could not read."""
    watching = asyncio.create_task(state.watch(Ledger()))
    await asyncio.sleep(0)
    watching.cancel()
    (trouble,) = (each for each in told if isinstance(each, TroubleNews))
    assert trouble.code == STATE_DAMAGED
    return trouble.message


async def test_a_damaged_state_is_told_until_somebody_pins_or_unpins(tmp_path: Path) -> None:
    made, told = ledger(), list[Event]()
    made.set_pinned(True, By("pin", 1, 2, 3.5))
    for _ in range(2):
        await StateFile(tmp_path).save(made)
    (tmp_path / "state.json").write_bytes(b"")
    state = StateFile(tmp_path, told.append)
    known = state.read()
    assert known.pinned
    assert "state.former" in str(await damage(state, told))
    await state.save(known)
    assert len(told) == 1
    state = StateFile(tmp_path, (again := list[Event]()).append)
    known = state.read()
    assert await damage(state, again)  # it is not forgotten with the process
    assert again == told
    known.set_pinned(False, By("unpin", 1, 2, 4.5))
    await state.save(known)
    assert again[1:] == [TroubleNews(STATE_DAMAGED, None, "")]
    assert len(list(tmp_path.glob("*.unreadable"))) == 1


async def test_a_folder_that_is_moved_away_is_told_and_nothing_is_lost_when_it_is_back(
    tmp_path: Path,
) -> None:
    told = asyncio.Queue[Event]()
    path, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    state = StateFile(path, told.put_nowait)
    with state.folder.hold(Path("/run/s")):
        watching = asyncio.create_task(state.watch(ledger(), pause=0.001))
        try:
            path.rename(elsewhere)
            async with asyncio.timeout(PATIENCE):
                began = await told.get()
                elsewhere.rename(path)
                over = await told.get()
        finally:
            watching.cancel()
            await asyncio.wait({watching})
    assert isinstance(began, TroubleNews)
    assert (began.code, str(elsewhere) in str(began.message)) == (STATE_MOVED, True)
    assert over == TroubleNews(STATE_MOVED, None, "")
    assert state.read().last_good == ledger().last_good


async def test_a_state_of_a_newer_version_is_told_and_left_for_the_newer_one(
    tmp_path: Path,
) -> None:
    newer = b'{"version": 99, "what": "this one cannot know"}'
    (tmp_path / "state.json").write_bytes(newer)
    told = list[Event]()
    state = StateFile(tmp_path, told.append)
    assert state.read() == Ledger()
    assert "version 99, and this hotreload knows" in str(await damage(state, told))
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
    assert (known.pinned_by, known.overruled, [each.by for each in known.attempts]) == (
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
    assert [attempt.outcome for attempt in known.attempts] == ["rejected", "live"]
    assert known.attempts[1].phases[Phase.STAGING] == 1.5
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
    trying = asyncio.create_task(state.watch(ledger(), pause=0.001, again=0.001))
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
