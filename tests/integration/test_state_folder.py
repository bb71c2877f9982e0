"""A state folder that is damaged, moved away, or names odd places: nothing is lost silently."""

import os
from pathlib import Path
from typing import Any

import httpx

from hotreload.errors import ConfigError
from hotreload.tiny import write_tiny
from tests.evidence import TROUBLES
from tests.integration.deaths import ledger_of
from tests.integration.process import OF_WORDS, Process
from tests.integration.running import words
from tests.waiting import PATIENCE

WIDE = "step_2\u3000of\u00a0a\u200brun\xad"
"""A name with what `str.isprintable` does not like."""
NO_TEXT = os.fsdecode(b"step_3 of a run \xff")
SHOWN = "step_3 of a run \\udcff"


def troubles(process: Process) -> dict[str, dict[str, Any]]:
    """What the status tells; the metrics, which may be a second old, come to tell the same."""
    told = {each["code"]: each for each in process.get("/status")["troubles"]}
    transport = httpx.HTTPTransport(uds=str(process.socket))
    with httpx.Client(transport=transport, base_url="http://x", timeout=PATIENCE) as client:

        def tell_the_same() -> bool:
            lines = client.get("/metrics").text.splitlines()
            gauges = {f'hotreload_trouble{{code="{code}"}} {code in told:.1f}' for code in TROUBLES}
            return gauges <= set(lines)

        process.until(tell_the_same)
    return told


def moved(process: Process) -> str:
    """What the status says of the folder; empty while it is where it belongs."""
    told = process.get("/status")["troubles"]
    return next((each["message"] for each in told if each["code"] == "state_moved"), "")


def rolled_back(process: Process, number: int) -> dict[str, Any]:
    return process.daemon.ask("POST", "/admin/rollback", {"generation": number}).fields


def told_of(process: Process) -> tuple[str, bool, str]:
    """What the status says of who answers, and what he answers."""
    status = process.get("/status")
    return status["label"], status["pinned"], process.ask()["text"]


def told_of_damage(process: Process, file: Path) -> str:
    trouble = troubles(process)["state_damaged"]
    words = str(trouble["message"])
    assert f"{file} is damaged" in words
    assert "a pin, a rollback, a refusal" in words
    assert "hotreload unpin" in trouble["todo"]
    return words


def test_a_torn_state_and_a_moved_folder_cost_no_pin_no_number_and_no_odd_path(
    tmp_path: Path,
) -> None:
    state, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    process = Process(tmp_path, "source.settle=0", command=OF_WORDS)
    process.drop(1)
    with process.running():
        write_tiny(process.checkpoints / WIDE, words(2))
        process.live(WIDE)
        write_tiny(process.checkpoints / NO_TEXT, words(3))
        process.live(SHOWN)
        process.daemon.ask("POST", "/admin/pin", {})
        process.drop(4)
        assert troubles(process) == {}
        assert process.stop() == 0
    last = ledger_of(process).next_number - 1

    torn = (state / "state.json").read_bytes()
    (state / "state.json").write_bytes(torn[: len(torn) // 2])
    with process.running():
        assert told_of(process) == (SHOWN, True, words(3))
        assert process.get("/status")["generation"] >= last
        trouble = told_of_damage(process, state / "state.json")
        (aside,) = state.glob("*.unreadable")
        assert aside.read_bytes() == torn[: len(torn) // 2]
        assert process.stop() == 0
    with process.running():
        assert told_of_damage(process, state / "state.json") == trouble  # nobody has looked so far
        assert rolled_back(process, 2)["generation"] > last
        assert "state_damaged" in troubles(process)
        process.daemon.ask("POST", "/admin/pin", {})
        assert troubles(process) == {}

        state.rename(elsewhere)
        process.until(lambda: moved(process))
        assert f"{state} is gone; what changes is written to {elsewhere}" in moved(process)
        assert "state_moved" in troubles(process)
        elsewhere.rename(state)
        process.until(lambda: not moved(process))
        assert troubles(process) == {}

        state.rename(elsewhere)
        (tmp_path / "2").mkdir()
        second = Process(tmp_path / "2", f"state.directory={state}", command=OF_WORDS)
        second.drop(1)
        with second.begun():
            process.until(lambda: f"(pid {second.child.pid}, " in moved(process))
        process.until(lambda: not moved(process))  # it is free, and taken before anybody comes
        assert [each.number for each in ledger_of(process).generations][-1] > last
        with second.begun():
            assert second.child.wait(PATIENCE) == ConfigError.exit_code
        assert process.stop() == 0

    with process.running():
        assert told_of(process) == (WIDE, True, words(2))
        assert troubles(process) == {}
        assert process.stop() == 0
