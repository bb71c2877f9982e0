"""The files of the state folder under damage of every kind: numbers go on, and a loss is told."""

import json
import math
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from hotreload.attempts import Attempt, By
from hotreload.core.ledger import Ledger
from hotreload.life.saved.state import FORMER, NEWEST, NUMBER, keep_aside, note_number, write
from hotreload.life.saved.state import read_newest as read
from hotreload.life.saved.state_json import to_json
from hotreload.types import Generation, LoadFacts, Outcome, Phase, Reason, Revision

DAMAGES = 400


def rich(generations: int = 10) -> Ledger:
    """A ledger with something of everything that survives a restart, pinned."""
    ledger = Ledger()
    for number in range(1, generations + 1):
        revision = Revision(f"{number:032x}", f"step_{number}")
        ledger.went_live(Generation(number, revision, f"fp{number}", float(number)), f"/c/{number}")
        loading = LoadFacts("own", largest_change=math.inf, most_changed="leaf")
        attempt = Attempt(
            revision, Outcome.LIVE, None, {Phase.STAGING: 0.5}, 0.0, 7.0, number, loading=loading
        )
        ledger.attempts.appendleft(attempt)
    ledger.refuse(Revision("bad", "step_99"), Reason("shape", "words", ("one", "two")), 8.0)
    ledger.overrule(Revision("a"), By("rollback", 0, 1, 2.0))
    ledger.set_pinned(True, By("pin", 0, 1, 2.0, "why"))
    return ledger


def save(folder: Path, ledger: Ledger) -> None:
    at = os.open(folder, os.O_RDONLY)
    try:
        write(at, to_json(ledger), ledger.next_number - 1)
    finally:
        os.close(at)


def saved(folder: Path) -> None:
    """Written in two saves: the former knows nine generations, the newest ten."""
    save(folder, rich(9))
    save(folder, rich(10))


def of_another_shape(data: bytes) -> bytes:
    return json.dumps({**json.loads(data), "generations": {"no": "list"}}).encode()


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "torn": lambda data: data[: len(data) // 2],
    "without its last byte": lambda data: data[:-1],
    "zeros": lambda data: bytes(len(data)),
    "zeros at its end": lambda data: data[:-512] + bytes(512),
    "garbage": lambda data: bytes(range(256)) * 8,
    "nested without end": lambda data: b"[" * 100_000,
    "a list": lambda data: b"[]",
    "an empty object": lambda data: b"{}",
    "of no version": lambda data: json.dumps({**json.loads(data), "version": None}).encode(),
    "of another shape": of_another_shape,
    "another number in sound JSON": lambda data: data.replace(b'"number": 10', b'"number": 12'),
    "no pin in sound JSON": lambda data: data.replace(b'"pinned": true', b'"pinned": false'),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_of_a_damaged_state_the_former_is_read_and_the_loss_is_told(
    tmp_path: Path, kind: str
) -> None:
    saved(tmp_path)
    newest = tmp_path / NEWEST
    newest.write_bytes(DAMAGE[kind](newest.read_bytes()))
    found = read(tmp_path)
    assert f"{newest} is damaged: " in str(found.damage)
    assert f"{tmp_path / FORMER} of " in str(found.damage)
    assert "may be forgotten: a pin" in str(found.damage)
    assert "hotreload unpin" in found.todo
    assert found.unusable == (NEWEST,)
    assert list(found.ledger.generations) == list(rich(9).generations)
    assert found.ledger.pinned
    assert found.ledger.next_number == 12  # 10 was given; 11 may have been, and was not written


def test_a_sound_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    saved(tmp_path)
    found = read(tmp_path)
    assert (to_json(found.ledger), found.damage) == (to_json(rich(10)), None)


def test_where_both_are_damaged_numbers_go_on_and_all_is_told_as_lost(tmp_path: Path) -> None:
    saved(tmp_path)
    for name in (NEWEST, FORMER):
        (tmp_path / name).write_bytes(b"{")
    found = read(tmp_path)
    assert found.ledger == Ledger(numbers_given=11, damage=found.damage)
    assert "pins, rollbacks and refusals are forgotten" in str(found.damage)
    assert found.unusable == (NEWEST, FORMER)


def test_a_state_that_is_gone_is_told_where_there_was_one(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / NEWEST).unlink()
    found = read(tmp_path)
    assert f"{tmp_path / NEWEST} is gone; " in str(found.damage)
    assert (found.unusable, found.ledger.pinned) == ((), True)
    (tmp_path / FORMER).unlink()
    assert read(tmp_path).ledger.next_number == 12


def test_numbers_go_on_behind_a_state_of_a_newer_version(tmp_path: Path) -> None:
    saved(tmp_path)
    newest = tmp_path / NEWEST
    newest.write_bytes(newest.read_bytes().replace(b'"version": ', b'"version": 9', 1))
    found = read(tmp_path)
    assert found.is_newer
    assert "is left as it is" in str(found.damage)
    assert found.ledger.next_number == 11


def test_the_number_is_kept_where_an_older_state_is_put_in_its_place(tmp_path: Path) -> None:
    save(tmp_path, rich(3))
    backup = (tmp_path / NEWEST).read_bytes()
    save(tmp_path, rich(10))
    (tmp_path / NEWEST).write_bytes(backup)
    assert read(tmp_path).ledger.next_number == 11
    save(tmp_path, rich(3))
    assert read(tmp_path).ledger.next_number == 11


def test_a_kill_in_an_attempt_leaves_out_the_number_that_was_noted_for_it_alone(
    tmp_path: Path,
) -> None:
    """A kill before the number was noted leaves out none: no weights can have answered by it."""
    cut_off = rich(10)
    cut_off.begin(Revision("b"))
    save(tmp_path, cut_off)
    assert read(tmp_path).ledger.next_number == 11
    at = os.open(tmp_path, os.O_RDONLY)
    note_number(at, 11)
    os.close(at)
    assert read(tmp_path).ledger.next_number == 12


def test_where_the_number_is_gone_a_kill_in_an_attempt_leaves_one_out(tmp_path: Path) -> None:
    """Weights may have answered by the next number: one number, one set of weights."""
    cut_off = rich(10)
    cut_off.begin(Revision("b"))
    save(tmp_path, cut_off)
    (tmp_path / NUMBER).unlink()
    assert read(tmp_path).ledger.next_number == 12
    save(tmp_path, rich(10))
    (tmp_path / NUMBER).unlink()
    assert read(tmp_path).ledger.next_number == 11, "only a kill in an attempt leaves one out"


@pytest.mark.parametrize("number", [b"", b"x", b"-5", b"\xff", b"9" * 5000])
def test_a_damaged_number_is_no_reason_not_to_read_the_rest(tmp_path: Path, number: bytes) -> None:
    saved(tmp_path)
    (tmp_path / NUMBER).write_bytes(number)
    found = read(tmp_path)
    assert (list(found.ledger.generations), found.damage) == (list(rich(10).generations), None)


def test_under_hundreds_of_damages_no_number_falls_and_no_loss_is_silent(tmp_path: Path) -> None:
    saved(tmp_path)
    whole = {name: (tmp_path / name).read_bytes() for name in (NEWEST, FORMER, NUMBER)}
    chance = random.Random(11)
    for turn in range(DAMAGES):
        for name, data in whole.items():
            (tmp_path / name).write_bytes(data)
        # All three at once would be the loss of the folder.
        for name in chance.sample(list(whole), chance.choice([1, 1, 2])):
            (tmp_path / name).write_bytes(damaged(whole[name], chance))
        found = read(tmp_path)
        assert found.ledger.next_number > 9, turn
        if (tmp_path / NUMBER).read_bytes() == whole[NUMBER]:
            assert found.ledger.next_number > 10, turn
        if found.damage is None:
            assert found.ledger.generations == rich(10).generations, turn
            assert found.ledger.pinned, turn
            assert found.ledger.overruled == rich(10).overruled, turn


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Bytes as a disk, a power cut or a hand may leave them."""
    at = chance.randrange(len(data))
    to = min(len(data), at + chance.randrange(1, 600))
    return chance.choice(
        [
            data[:at],
            data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :],
            data[:at] + bytes(to - at) + data[to:],
            data[:at] + data[to:],
            data[:to] + data[at:],
            data[:at] + chance.randbytes(to - at) + data[to:],
            data[:at] + str(chance.randrange(10)).encode() + data[at + 1 :],
        ]
    )


# --- how it is written ------------------------------------------------------------------------


def test_cut_off_at_any_step_a_whole_state_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each system call that changes the folder is the last one once; the next start reads."""
    steps = [(os, name) for name in ("open", "fsync", "rename", "link", "unlink")]
    for cut in range(20):
        folder = tmp_path / str(cut)
        folder.mkdir()
        saved(folder)
        left = [cut]

        def unless_cut[**P, R](call: Callable[P, R], left: list[int]) -> Callable[P, R]:
            def passed(*args: P.args, **more: P.kwargs) -> R:
                if not left[0]:
                    raise Cut
                left[0] -= 1
                return call(*args, **more)

            return passed

        at = os.open(folder, os.O_RDONLY)
        with monkeypatch.context() as patch:
            for module, name in steps:
                patch.setattr(module, name, unless_cut(getattr(os, name), left))
            try:
                write(at, to_json(rich(11)), 11)
            except Cut:
                was_cut = True
            else:
                was_cut = False
        os.close(at)
        found = read(folder)
        assert (found.damage, found.ledger.pinned) == (None, True), cut
        assert found.ledger.next_number in (11, 12), cut
        (folder / NEWEST).write_bytes(b"torn")
        assert was_cut or list(read(folder).ledger.generations) == list(rich(10).generations)
    assert not was_cut


class Cut(BaseException):
    """The power is cut."""


def test_what_is_written_is_on_the_disk_before_it_has_its_name_and_the_name_before_we_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path)
    done = list[tuple[str, str]]()
    fsync, rename = os.fsync, os.rename

    def noted_fsync(descriptor: int) -> None:
        opened = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        whole = opened.is_dir() or opened.read_bytes() == to_json(rich(10))
        done.append(("fsync" if whole else "fsync too early", opened.name))
        fsync(descriptor)

    def noted_rename(old: str, new: str, **folders: int) -> None:
        done.append((f"rename {old}", new))
        rename(old, new, **folders)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "rename", noted_rename)
    save(tmp_path, rich(10))
    assert done == [
        ("fsync", "state.new"),
        ("rename state.new", NEWEST),
        ("fsync", tmp_path.name),
    ]


def test_a_file_system_where_a_file_has_one_name_keeps_the_former_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **more: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    saved(tmp_path)
    assert to_json(read(tmp_path).ledger) == to_json(rich(10))
    (tmp_path / NEWEST).unlink()
    assert list(read(tmp_path).ledger.generations) == list(rich(9).generations)


def test_a_write_that_fails_half_way_leaves_both_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path)
    before = [(tmp_path / name).read_bytes() for name in (NEWEST, FORMER)]

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, rich(11))
    assert [(tmp_path / name).read_bytes() for name in (NEWEST, FORMER)] == before


def test_what_cannot_be_read_is_kept_beside(tmp_path: Path) -> None:
    (tmp_path / NEWEST).write_bytes(b"torn")
    at = os.open(tmp_path, os.O_RDONLY)
    for name in (NEWEST, FORMER):
        keep_aside(at, name, 7)
    os.close(at)
    assert [file.name for file in tmp_path.iterdir()] == ["state.7.unreadable"]
