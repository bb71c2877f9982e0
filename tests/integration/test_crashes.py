"""Killed, told to stop, or with a state folder that refuses: the last good generation serves.

The journal, the state and signals are the same whatever the engine is: all points are passed on an
engine of words, and those that a real one may make worse on the real one, too.
"""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hotreload.core.ledger import Ledger
from hotreload.failpoints import OVERLAP_ONLY, POINTS, START_ONLY
from hotreload.life.saved.state_json import to_json
from hotreload.life.saved.state_lock import user_of
from hotreload.types import Generation, Revision
from tests.integration.deaths import (
    EXIT_SECONDS,
    KILLED,
    PHASE_AT,
    Story,
    assert_answers_from,
    assert_numbers_rise,
    ledger_of,
    made,
    of_words,
    stop_at,
)
from tests.integration.process import START_SECONDS, Process
from tests.waiting import PATIENCE

# --- kill -9 ---------------------------------------------------------------------------------


def test_killed_at_any_point_it_comes_back_on_the_last_good_generation(tmp_path: Path) -> None:
    story = Story(of_words(tmp_path))
    for point in POINTS:
        if point not in ("rolling_back", "resting", *OVERLAP_ONLY, *START_ONLY):
            story.die_at(point)
    story.die_at("rolling_back")
    with story.process.running():  # the gibberish is tried once more, and judged this time
        story.process.until(lambda: story.process.get("/status")["refused"])
        (refused,) = story.process.get("/status")["refused"]
        assert (refused["label"], refused["code"]) == (f"step_{story.newest}", "probe")
        assert_answers_from(story.process, story.good)
        assert list((tmp_path / "state" / "staging").iterdir()) == []
        assert story.process.stop() == 0
    assert_numbers_rise(story.process)


def test_the_second_death_over_a_revision_refuses_it(tmp_path: Path) -> None:
    process = of_words(tmp_path)
    with process.running("swapping=kill"):
        process.drop(2)
        assert process.child.wait(PATIENCE) == KILLED
    with process.begun("swapping=kill"):
        assert process.child.wait(START_SECONDS) == KILLED  # tried once more, by itself
    assert len(process.said("failpoints.armed")) == 2
    with process.running():
        (refused,) = process.get("/status")["refused"]
        assert (refused["label"], refused["code"]) == ("step_2", "crashed")
        assert_answers_from(process, 1)
        process.drop(3)
        process.live("step_3")
        assert_answers_from(process, 3)


def test_a_death_by_a_signal_is_told_and_what_a_start_died_over_is_left_out(
    tmp_path: Path,
) -> None:
    process, compiled = of_words(tmp_path), tmp_path / "state" / "compiled"
    process.environ["JAX_COMPILATION_CACHE_DIR"] = ""

    def told() -> str:
        rows = {each["name"]: each["words"] for each in process.get("/status")["rows"]}
        assert process.said("daemon.last_life_died")[-1]["message"] in rows["last life"]
        return str(rows["last life"])

    with process.running():
        assert process.get("/status")["last_life"] is None
        assert process.stop() == 0
    compiled.mkdir()
    (compiled / "for_this").mkdir()
    with process.begun("reading=kill"):
        assert process.child.wait(START_SECONDS) == KILLED
        died = process.child.pid
    process.environ["STATE_DIRECTORY"] = str(tmp_path)
    (tmp_path / "ended").write_text("killed KILL oom-kill\n")  # by the unit's ExecStopPost
    with process.running():
        assert f"(pid {died}) ended by SIGKILL (oom-kill); before its start was over" in told()
        assert "generation 1, step_1" in told()
        assert "journalctl -u hotreload" in told()
        assert str(compiled / "for_this.left_out") in told()
        assert process.said("compile_cache.left_out")
        (compiled / "for_that").mkdir()
        process.until(lambda: user_of(tmp_path / "state")["stage"] == "serving")
        process.child.kill()
        process.child.wait()
    with process.running():
        assert "by a signal; generation 1, step_1" in told()  # that was written before
        assert sorted(each.name for each in compiled.iterdir()) == ["for_that", "for_this.left_out"]
        process.child.send_signal(signal.SIGTERM)
        process.until(lambda: process.said("daemon.stopping")[1:])
        process.child.kill()  # as systemd does with one that takes too long
        process.child.wait()
    with process.running():
        assert process.get("/status")["last_life"] is None


# --- SIGTERM ---------------------------------------------------------------------------------

STOPS = {
    "staging=hang": 1,
    "reading=hang@2": 1,  # a thread, which cannot be cancelled: it is left behind
    "draining=hang": 1,
    "swapping=delay:1.5": 2,  # from here on it goes on to its end
    "probing=hang": 1,  # until probe_timeout, and is rolled back then
}
"""And which step is good afterwards; tests/soak has the other points."""


@pytest.mark.parametrize("failpoint", STOPS)
def test_told_to_stop_in_any_phase_it_exits_0_in_time(tmp_path: Path, failpoint: str) -> None:
    stop_at(of_words(tmp_path), failpoint, STOPS[failpoint])


@pytest.mark.real_engine
def test_told_to_stop_while_a_real_engine_reads_it_exits_0_in_time(tmp_path: Path) -> None:
    stop_at(made(tmp_path), "reading=hang@2", good=1)


@pytest.mark.parametrize("point", ["reading", "swapping", "probing", "rolling_back"])
def test_a_second_sigterm_waits_for_nothing(tmp_path: Path, point: str) -> None:
    process = of_words(tmp_path, "reload.probe_timeout=60")
    with process.running(f"{point}=hang" + ("@2" if point == "reading" else "")):
        process.drop(2, "gibberish" if point == "rolling_back" else None)
        process.until(lambda: process.get("/status")["phase"] == PHASE_AT.get(point, point))
        process.child.send_signal(signal.SIGTERM)
        process.until(lambda: process.said("daemon.stopping"))
        process.child.send_signal(signal.SIGTERM)
        assert process.child.wait(EXIT_SECONDS) == 1
    assert ledger_of(process).under_way is not None  # it counts as a death over step_2


def test_told_to_stop_before_the_engine_is_built_it_exits_0(tmp_path: Path) -> None:
    process = of_words(tmp_path)
    with process.begun("reading=hang"):
        process.until(lambda: has_copies(process), START_SECONDS)
        process.child.send_signal(signal.SIGTERM)
        assert process.child.wait(2 * EXIT_SECONDS) == 0
    assert_nothing_was_begun(process, hangs=True)


@pytest.mark.at_night
@pytest.mark.real_engine
@pytest.mark.parametrize("is_built", [False, True])
def test_told_to_stop_while_a_real_engine_is_built_or_asked_for_the_first_time_it_exits_0(
    tmp_path: Path, is_built: bool
) -> None:
    process = made(tmp_path)
    with process.begun():
        process.until(lambda: has_copies(process), START_SECONDS)
        if is_built:
            process.until(lambda: not has_copies(process), START_SECONDS)
        process.child.send_signal(signal.SIGTERM)
        assert process.child.wait(2 * EXIT_SECONDS) == 0
    assert_nothing_was_begun(process)


def copies_of(process: Process) -> Path:
    """Where that lies which it starts from, until it has started."""
    return process.folder / "state" / "boot"


def has_copies(process: Process) -> bool:
    copies = copies_of(process)
    return copies.is_dir() and any(copies.iterdir())


def assert_nothing_was_begun(process: Process, *, hangs: bool = False) -> None:
    """It ended in order before anything was live; a copy stays only where its thread hangs."""
    assert not process.said("generation.live")
    assert not process.socket.exists()
    # A thread that hangs cannot be cancelled: the next start clears what it was writing.
    copies = list(copies_of(process).iterdir())
    assert len(copies) == hangs
    # Where the machine is busy an engine that is being built may outlast the stop, too.
    assert len(process.said("daemon.left_behind")) in ({1} if hangs else {0, 1})
    ledger = ledger_of(process)
    assert (ledger.under_way, ledger.last_good, ledger.refused) == (None, None, {})


# --- the state folder ------------------------------------------------------------------------


def earlier(process: Process) -> bytes:
    """A state file that remembers step_1 under number 7."""
    ledger = Ledger()
    live = Generation(7, Revision("of no matter", "step_1"), "fp", 1.0)
    ledger.went_live(live, str(process.checkpoints / "step_1"))
    return to_json(ledger)


def test_a_state_file_of_a_newer_version_is_left_as_it_is(tmp_path: Path) -> None:
    process = of_words(tmp_path)
    state = tmp_path / "state" / "state.json"
    state.parent.mkdir()
    newer = json.dumps({**json.loads(earlier(process)), "version": 99}).encode()
    state.write_bytes(newer)
    with process.running():
        assert_answers_from(process, 1)
        process.drop(2)
        process.live("step_2")
        assert [each["code"] for each in process.said("trouble.began")] == ["state_damaged"]
        assert process.stop() == 0
    assert state.read_bytes() == newer


@contextmanager
def disk(folder: Path, options: str) -> Iterator[Path]:
    """A small file system of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount the small disk this needs")
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here, and this needs a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_read_only_state_folder_costs_the_memory_and_not_the_service(tmp_path: Path) -> None:
    process = of_words(tmp_path)
    with disk(tmp_path / "state", "ro"), process.running():
        assert_answers_from(process, 1)
        for number in (2, 3):
            process.drop(number)
            process.live(f"step_{number}")
            assert_answers_from(process, number)
        told = ("boot.copies_elsewhere", "state.not_saved")
        assert [len(process.said(event)) for event in told] == [1, 1]
        assert process.stop() == 0


def test_killed_with_a_full_state_disk_it_gives_no_number_twice(tmp_path: Path) -> None:
    """Numbers went on in memory, and after the crash others answered by the same ones."""
    process, given = of_words(tmp_path), dict[int, str]()

    def gave(step: int) -> None:
        process.drop(step)
        process.live(f"step_{step}")
        assert_is_new(process.ask(), given)

    with disk(tmp_path / "state", "size=1m") as state:
        with process.running():
            assert_is_new(process.ask(), given)
            process.until(lambda: ledger_of(process).generations)  # a moment after the answer
            fill(state / "somebody's")
            gave(2)
            gave(3)
            process.child.kill()
            process.child.wait()
        assert [place.number for place in ledger_of(process).generations] == [1]
        with process.running():
            process.live("step_3")
            assert_is_new(process.ask(), given)
            number = state / "number"
            number.unlink()
            number.mkdir()
            process.drop(4)
            process.until(lambda: process.get("/status")["last_attempt"]["outcome"] == "postponed")
            status = process.get("/status")
            assert (status["label"], status["last_attempt"]["code"]) == ("step_3", "not_saved")
            assert f"{number} cannot be written" in status["last_attempt"]["reason"]
            assert status["state_file"]["saved"] is False
            process.daemon.ask("POST", "/admin/rollback", {})  # which nothing may bar
            assert_is_new(process.ask(), given)
            process.child.kill()
            process.child.wait()


def assert_is_new(answer: dict[str, Any], given: dict[int, str]) -> None:
    """No answer before had its number."""
    number = answer["meta_info"]["generation"]
    assert number not in given, (number, answer["text"], given)
    given[number] = answer["text"]


@pytest.mark.at_night
@pytest.mark.real_engine
def test_a_full_disk_puts_swaps_off_until_there_is_room(tmp_path: Path) -> None:
    """Of upstream's loader, which reads a private copy; our own needs no room on any disk."""
    process = made(tmp_path, "engine.loader=upstream")
    with disk(tmp_path / "state", "size=32m") as state, process.running():
        fill(state / "somebody's")
        process.drop(2)
        last: dict[str, Any] = {}

        def is_put_off() -> bool:
            last.update(process.get("/status")["last_attempt"] or {})
            return last.get("outcome") == "postponed"

        process.until(is_put_off)
        assert "free some space" in last["reason"]
        assert_answers_from(process, 1)
        assert len(process.said("state.not_saved")) == 1
        (state / "somebody's").unlink()
        process.live("step_2")
        assert_answers_from(process, 2)
        process.until(lambda: ledger_of(process).under_way is None)
        assert process.stop() == 0


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            return
