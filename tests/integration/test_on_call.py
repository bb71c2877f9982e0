"""What whoever is on call is told at night: by commands, before a real daemon on an engine of
words, with workers and without."""

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

from hotreload.cli import main
from tests.integration.process import OF_WORDS, Process

JUDGES = (
    "case $HOTRELOAD_LABEL in step_11) [ -e {0}/tried ] && exec cat {0}/go; touch {0}/tried; "
    "exit 75;; esac"
)
"""Asks to be asked again about one checkpoint, and then waits for a word of the test."""
HOLDS = "held: the source is not followed until `hotreload unpin`"


@pytest.fixture(scope="module", params=(0, 2), ids="{} workers".format)
def process(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Process]:
    """One daemon for all, with three generations behind it."""
    folder = tmp_path_factory.mktemp("on-call")
    sets = (f"server.workers={request.param}", "source.settle=0", "source.rescan=0.3")
    os.mkfifo(folder / "go")
    judge = f"command.run={['sh', '-c', JUDGES.format(folder)]}"
    more = ("source.patience=0.3", "command.timeout=90", judge)
    process = Process(folder, *sets, *more, command=OF_WORDS)
    process.drop(1)
    with process.running():
        process.until(lambda: process.get("/status")["workers"]["serving"] == request.param)
        for number in (2, 3):
            process.drop(number)
            process.live(f"step_{number}")
        yield process


class Said:
    """Runs verbs of the command on the daemon, and keeps what they print."""

    def __init__(self, process: Process, printed: pytest.CaptureFixture[str]) -> None:
        self._process, self._printed = process, printed
        self.code = 0

    def __call__(self, verb: str, *words: str) -> list[str]:
        self._printed.readouterr()
        self.code = main([verb, "--socket", str(self._process.socket), *words])
        both = self._printed.readouterr()
        return (both.out + both.err).splitlines()


@pytest.fixture
def hotreload(process: Process, capsys: pytest.CaptureFixture[str]) -> Said:
    return Said(process, capsys)


def status(process: Process) -> dict[str, Any]:
    return dict(process.get("/status"))


def row(process: Process, name: str) -> str:
    return next((each["words"] for each in status(process)["rows"] if each["name"] == name), "")


def waits_for(process: Process, words: str) -> None:
    process.until(lambda: words in (status(process)["waiting_for"] or ""))


def test_a_rollback_by_hand_holds_until_unpin_whatever_the_trainer_writes(
    process: Process, hotreload: Said
) -> None:
    said = hotreload("rollback", "--reason", "talks nonsense")
    assert (hotreload.code, said[-1]) == (0, HOLDS)
    assert "rolled back to step_2" in said[0]
    process.drop(4)
    waits_for(process, "a rollback holds generation 4")
    now = status(process)
    assert (now["label"], now["pinned"], now["pin"]["verb"]) == ("step_2", True, "rollback")
    assert process.ask()["text"] == "served by step 2"
    words = now["summary"]["words"]
    assert words.endswith("step_4 is wanted, but a rollback holds this one"), words
    assert now["summary"]["next"] == "hotreload unpin"
    by, pid = now["pin"]["uid"], now["pin"]["pid"]
    held = row(process, "held")
    assert held.startswith("by a rollback, the source is not followed until `hotreload unpin`\n")
    assert f"rollback by uid {by} (pid {pid}), {now['pin']['at']}: talks nonsense" in held
    hotreload("status", "--check")
    assert hotreload.code == 0


def test_a_second_rollback_says_which_generations_can_be_had_and_how(
    process: Process, hotreload: Said
) -> None:
    said = hotreload("rollback")
    assert "rolled back to step_1" in said[0]
    others = [
        "generation 4 (step_2, kept in memory): hotreload rollback 4",
        "generation 3 (step_3, restaged from its files): hotreload rollback 3",
    ]
    assert said[-3:] == [*(f"  can be had, too: {each}" for each in others), HOLDS]
    said = hotreload("rollback")
    nothing = "hotreload: no generation before 5 is left to go back to; what can be had: "
    assert (hotreload.code, said) == (1, [nothing + "; ".join(others)])


def test_after_a_restart_it_holds_on_and_unpin_takes_the_newest_that_was_not_tried(
    process: Process, hotreload: Said
) -> None:
    by = status(process)["pin"]
    assert process.stop() == 0
    process.start()
    process.until(lambda: process.get("/readyz"))
    process.until(lambda: status(process)["source"]["last_seen"])
    now = status(process)
    assert (now["label"], now["pinned"], now["pin"]) == ("step_1", True, by)
    past = hotreload("history")
    assert len([line for line in past if "rollback" in line]) == 2, past
    hotreload("unpin")
    process.live("step_4")


def test_what_was_left_is_not_taken_again_and_what_comes_after_it_is(
    process: Process, hotreload: Said
) -> None:
    hotreload("rollback")
    hotreload("unpin")
    words = status(process)["summary"]["words"]
    assert words.endswith(
        "step_1, answers; that is what an operator chose over the source's step_4"
    )
    process.drop(5)
    process.live("step_5")
    tried = [each["label"] for each in process.get("/history")["attempts"]]
    assert tried[:3] == ["step_5", "step_1", "step_4"]


def test_a_rollback_that_follows_holds_nothing(process: Process, hotreload: Said) -> None:
    said = hotreload("rollback", "--follow")
    last = "not held: the source's next checkpoint takes over; `hotreload pin` holds this one"
    assert (said[-1], status(process)["pinned"]) == (last, False)
    process.drop(6)
    process.live("step_6")
    answer = process.daemon.ask("POST", "/admin/rollback", {"hold": False}).fields
    assert (answer["outcome"], answer["pinned"]) == ("live", False)


def refused(process: Process, label: str, wanted: str) -> str:
    """Wait until it is refused and this is wanted; what the one sentence says then."""

    def is_so() -> bool:
        now = status(process)
        return (now["refused_newer"] or {}).get("label") == label and now["wanted_label"] == wanted

    process.until(is_so)
    return str(status(process)["summary"]["words"])


def listed(hotreload: Said, label: str) -> list[str]:
    return [line for line in hotreload("ls") if line.startswith(f"{label} ")]


def test_as_long_as_something_newer_was_refused_it_is_named_and_counted_and_a_fault(
    process: Process, hotreload: Said
) -> None:
    process.drop(7)
    process.live("step_7")
    assert hotreload("status", "--check") == []
    process.drop(8, damage="truncated")
    words = refused(process, "step_8", wanted="step_7")  # the source wishes for what is live again
    assert "step_7, answers; step_8 is newer and was refused (truncated), " in words
    assert status(process)["summary"]["next"] == "hotreload explain truncated"
    (line,) = hotreload("status", "--check")
    assert line.startswith("truncated: step_8 is newer and was refused")
    assert hotreload.code == 1
    process.drop(9, damage="wrong-shape")
    words = refused(process, "step_9", wanted="step_9")
    assert "; step_9 is wanted and was refused (shape): 2 in a row, the first " in words
    assert status(process)["summary"]["next"] == "hotreload explain shape"
    now = status(process)["refused_newer"]
    assert (now["in_a_row"], now["since"] < now["at"], now["seconds"] > 0) == (2, True, True)
    assert process.stop() == 0
    process.start()
    process.until(lambda: process.get("/readyz"))
    assert ": 2 in a row, the first " in refused(process, "step_9", wanted="step_9")
    hotreload("status", "--check")
    assert hotreload.code == 1
    process.daemon.ask("POST", "/admin/reload_weights", {"model_path": "step_6", "force": True})
    words = refused(process, "step_9", wanted="step_6")  # an older one does not end it
    assert words.endswith(" ago")
    assert "an operator chose over the source's step_9; step_9 is newer and was refused" in words
    assert status(process)["summary"]["doing"].endswith("for one that is newer than step_9")
    for file in (process.checkpoints / "step_6").iterdir():
        file.touch()
    process.until(lambda: "written anew" in "".join(listed(hotreload, "step_6")))
    assert len(listed(hotreload, "step_6")) == 1
    process.drop(10)
    process.live("step_10")
    process.until(lambda: hotreload("status", "--check") == [])
    assert hotreload.code == 0


def test_a_phase_has_an_age_and_a_command_that_decides_its_deadline_and_its_try(
    process: Process,
) -> None:
    """Its first try asks to be tried again."""
    process.drop(11)

    def command() -> dict[str, Any]:
        return (status(process)["attempt"] or {}).get("command") or {}

    process.until(lambda: command().get("try") == 2)
    found = command()
    assert (found["name"], found["within"], found["seconds"] >= 0) == ("sh", 90.0, True)
    age = r"for [\d.]+ m?s"
    decides = rf"{age}: \[command\] run \(sh\) decides, {age} of 90.0 s at most, try 2"
    assert re.fullmatch(rf"comparing, {decides}", row(process, "phase"))
    said = status(process)["summary"]
    assert re.search(rf"step_11 is wanted and on its way \(comparing, {decides}\)$", said["words"])
    doing = rf"answers requests; comparing step_11 \(\w+\) with what is live, {decides}"
    assert re.fullmatch(doing, said["doing"])
    (process.folder / "go").write_text("all is well")
    process.live("step_11")
