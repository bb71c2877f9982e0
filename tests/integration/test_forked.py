"""How the lives of daemons in tests begin: what is forked is what would be run."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.integration.forked import SET_BY_IMPORTS, Forked
from tests.integration.process import OF_WORDS, Process
from tests.integration.running import words
from tests.waiting import PATIENCE


@pytest.fixture
def process(tmp_path: Path) -> Process:
    process = Process(tmp_path, command=OF_WORDS)
    process.drop(1)
    return process


def test_a_forked_life_ends_as_one_that_is_run(process: Process) -> None:
    for through in ((), ("env",)):
        kind = subprocess.Popen if through else Forked
        with process.running(through=through):
            assert isinstance(process.child, kind)
            assert process.child.poll() is None
            assert process.stop() == 0
        assert process.child.poll() == 0
        with process.running(through=through):
            process.child.kill()
            assert process.child.wait(PATIENCE) == -signal.SIGKILL


def test_a_wait_for_a_life_that_goes_on_is_given_up(process: Process) -> None:
    with process.running(), pytest.raises(subprocess.TimeoutExpired):
        process.child.wait(0.01)


def test_a_life_in_another_environment_than_was_imported_in_is_run(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    with process.running():
        assert isinstance(process.child, Forked)
    monkeypatch.setenv("JAX_ENABLE_X64", "1")
    with process.running():
        assert isinstance(process.child, subprocess.Popen)


def test_what_the_code_under_test_sets_for_itself_is_no_other_environment(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SET_BY_IMPORTS:
        monkeypatch.setenv(name, "1")  # as it stays once a test has asked a hub
    with process.running():
        assert isinstance(process.child, Forked)


def test_what_a_life_changes_is_its_own(
    process: Process, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its environment and its folder are those of whoever starts it."""
    monkeypatch.setenv("HOTRELOAD__RELOAD__MODE", "drain")
    with process.running():
        assert process.get("/status")["mode"] == "drain"
    monkeypatch.delenv("HOTRELOAD__RELOAD__MODE")
    monkeypatch.chdir(tmp_path)
    with process.running():
        assert process.get("/status")["mode"] == "overlap"
        assert Path(f"/proc/{process.child.pid}/cwd").resolve() == tmp_path


def test_a_daemon_of_words_has_loaded_nothing_of_jax(process: Process) -> None:
    for through in ((), ("env",)):
        with process.running(through=through):
            assert "jaxlib" not in Path(f"/proc/{process.child.pid}/maps").read_text()
            assert process.ask()["text"] == words(1)
