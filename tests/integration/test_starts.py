"""A start never answers by other weights than everybody expects, and never does so silently.

Each story is told in full on an engine of words, and its main part on the real one.
"""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from hotreload.tiny import write_tiny
from hotreload.troubles import FILES_GONE, OLDER_ANSWERS, PROBE_DOUBTED, WAITS_FOR_FILES
from tests.integration.process import OF_WORDS, REAL, START_SECONDS, Process
from tests.integration.running import words

PROBE = "[[probe]]\nprompt = 'Who serves?'\nmax_new_tokens = 12\nregex = '{}'\n"


class Started(Process):
    """A daemon whose model lies elsewhere than its checkpoints, as it does in earnest."""

    def __init__(self, folder: Path, command: str) -> None:
        model = write_tiny(folder / "model", words(0))
        sets = (f"engine.model={model}", "source.settle=0", "source.rescan=0.5")
        super().__init__(folder, *sets, command=command)
        self.away = folder / "away"
        self.away.mkdir()

    @property
    def status(self) -> dict[str, Any]:
        return self.get("/status") or {}

    def trouble(self, code: str) -> str | None:
        """What the status says of a trouble that the metrics count, too."""
        told = {each["code"]: each["message"] for each in self.status.get("troubles", ())}
        if code not in told:
            return None
        stands = f'hotreload_trouble{{code="{code}"}} 1.0'
        self.until(lambda: stands in self.page("/metrics").text)  # a page is a second old at most
        return str(told[code])

    def page(self, route: str) -> httpx.Response:
        transport = httpx.HTTPTransport(uds=str(self.socket))
        with httpx.Client(transport=transport, base_url="http://daemon") as client:
            return client.get(route)

    def assert_answers(self, number: int, generation: int) -> None:
        status = self.status
        assert (status["label"], status["generation"]) == (f"step_{number}", generation)
        assert self.ask()["text"] == words(number)

    def kill(self) -> None:
        self.child.kill()
        self.child.wait()

    def look_anew(self) -> None:
        self.child.send_signal(signal.SIGHUP)

    def take_away(self, number: int) -> None:
        os.rename(self.checkpoints / f"step_{number}", self.away / f"step_{number}")

    def bring_back(self, number: int) -> None:
        os.rename(self.away / f"step_{number}", self.checkpoints / f"step_{number}")

    @property
    def state(self) -> Path:
        return self.folder / "state" / "state.json"


@pytest.mark.parametrize(
    ("command", "starts"),
    [(OF_WORDS, 3), pytest.param(REAL, 1, marks=[pytest.mark.real_engine, pytest.mark.at_night])],
)
def test_a_mistaken_probe_refuses_nothing_that_was_live_however_often_it_starts(
    tmp_path: Path, command: str, starts: int
) -> None:
    """Three starts refused three good generations, and then the bare model answered."""
    process = Started(tmp_path, command)
    process.drop(1)
    with process.running():
        process.assert_answers(1, generation=1)
        process.kill()
    process.config.write_text(PROBE.format("Paris"))
    for start in range(starts):
        with process.running():
            process.assert_answers(1, generation=1)
            assert process.status["refused"] == []
            process.until(lambda: process.trouble(PROBE_DOUBTED))  # it is asked in full by now
            told = process.trouble(PROBE_DOUBTED)
            assert told is not None
            assert "expected a match of 'Paris', got 'served by step 1'" in told
            assert re.search(r"generation 1, step_1 .*, live since 20\d\d-", told)
            if start < starts - 1:
                process.kill()
                continue
            process.drop(2)  # what is new is judged as ever
            process.until(lambda: process.status["refused"])
            process.assert_answers(1, generation=1)
            process.config.write_text(PROBE.format("step"))
            process.look_anew()
            process.live("step_2")  # which is asked once more by itself
            process.until(lambda: not process.status["troubles"])
            assert process.trouble(PROBE_DOUBTED) is None
            process.config.write_text(PROBE.format("Paris"))
            process.kill()
    other = json.loads(process.state.read_text())
    other["served_by"]["sglang_jax"] = "9.9"
    del other["checksum"]  # with it what was changed by hand is damaged
    process.state.write_text(json.dumps(other))
    assert process.exits() == 78
    (end,) = process.said("daemon.bad_config")
    assert "expected a match of 'Paris'" in end["cause"]
    assert re.search(
        r"served by something else now: sglang-jax 9\.9 then, 0\.\S+ now", end["cause"]
    )
    assert json.loads(process.state.read_text())["refused"] == []


def test_at_a_first_start_the_newest_is_tried_and_else_the_model_answers(tmp_path: Path) -> None:
    process = Started(tmp_path, OF_WORDS)
    process.drop(1)
    process.drop(7, "nan")
    with process.running():
        assert process.ask()["text"] == words(0)
        process.until(lambda: process.status["wanted_label"])  # the source has looked again
        status = process.status
        assert (status["label"], status["generation"]) == ("model", 1)
        assert (status["wanted_label"], status["troubles"]) == ("step_7", [])
        assert [each["label"] for each in status["refused"]] == ["step_7"]
        process.daemon.ask("POST", "/admin/reload_weights", {"model_path": "step_1"})
        process.assert_answers(1, generation=2)
        process.kill()


def test_what_failed_other_probes_is_asked_once_more_after_a_restart(tmp_path: Path) -> None:
    process = Started(tmp_path, OF_WORDS)
    process.config.write_text(PROBE.format("step 1"))
    process.drop(1)
    with process.running():
        process.drop(2)
        process.until(lambda: json.loads(process.state.read_text())["refused"])  # later than shown
        process.kill()
    with process.running():  # by the same ones it is not
        process.until(lambda: "refused (probe)" in str(process.status["waiting_for"]))
        process.kill()
    assert len(process.said("reload.rejected")) == 1
    process.config.write_text(PROBE.format("step [12]"))
    with process.running():
        process.live("step_2")
        assert process.status["refused"] == []
        process.kill()


def test_files_that_are_gone_are_told_before_and_waited_for_or_replaced_by_older_ones(
    tmp_path: Path,
) -> None:
    """The bare model answered, ready, or a checkpoint that was steps older; no alert."""
    process = Started(tmp_path, OF_WORDS)
    files_are_gone_and_told(process)
    waits_where_all_is_gone(process)
    an_older_one_answers_in_its_place(process)
    waits_where_that_is_wanted(process)


@pytest.mark.real_engine
def test_on_a_real_engine_an_older_one_answers_in_the_place_of_files_that_are_gone(
    tmp_path: Path,
) -> None:
    process = Started(tmp_path, REAL)
    files_are_gone_and_told(process)
    an_older_one_answers_in_its_place(process)
    first, *later = (each["loader"] for each in process.said("engine.started"))
    assert (first, set(later)) == ("upstream", {"own"})  # until the two were compared


def files_are_gone_and_told(process: Started) -> None:
    process.drop(1)
    with process.running():
        process.drop(2)
        process.live("step_2")
        process.take_away(2)
        process.look_anew()
        process.until(lambda: process.trouble(FILES_GONE))
        told = process.trouble(FILES_GONE)
        assert told is not None
        assert "generation 2, step_2" in told
        assert f"{process.checkpoints / 'step_2'} is gone; a restart cannot find it" in told
        process.bring_back(2)
        process.look_anew()
        process.until(lambda: not process.status["troubles"])
        process.kill()


def waits_where_all_is_gone(process: Started) -> None:
    mounted = process.folder / "mounted"
    process.checkpoints.rename(mounted)
    process.checkpoints.mkdir()  # as where a mount failed
    with process.begun():
        process.until(lambda: process.trouble(WAITS_FOR_FILES), START_SECONDS)
        ready = process.page("/readyz")
        assert ready.status_code == 503
        assert "generation 2, step_2" in ready.text
        assert f"{process.checkpoints / 'step_2'} is gone" in ready.text
        process.checkpoints.rmdir()
        mounted.rename(process.checkpoints)
        process.until(lambda: process.get("/readyz"), START_SECONDS)
        process.assert_answers(2, generation=2)
        process.until(lambda: not process.status["troubles"])  # the source has looked again
        assert process.status["refused"] == []
        process.kill()


def an_older_one_answers_in_its_place(process: Started) -> None:
    process.take_away(2)
    with process.running():
        process.assert_answers(1, generation=3)
        process.until(lambda: process.trouble(OLDER_ANSWERS))
        told = process.trouble(OLDER_ANSWERS)
        assert told is not None
        assert re.match(r"step_1 \S+ answers instead of generation 2, step_2 ", told)
        assert f"{process.checkpoints / 'step_2'} is gone" in told
        assert process.status["wanted_label"] == "step_2"
        process.bring_back(2)
        process.live("step_2")
        process.until(lambda: not process.status["troubles"])
        process.assert_answers(2, generation=4)
        process.kill()


def waits_where_that_is_wanted(process: Started) -> None:
    process.take_away(2)
    with process.begun(sets=["engine.when_gone=wait"]):
        process.until(lambda: process.trouble(WAITS_FOR_FILES), START_SECONDS)
        assert process.page("/readyz").status_code == 503
        assert process.status["generation"] is None
