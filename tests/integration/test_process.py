"""The daemon as a process of its own: restarts, signals, deaths, and what it costs when idle.

Where nothing hangs on the engine there is one of words in it.
"""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from hotreload import __version__
from hotreload.errors import AddressTaken
from hotreload.server.http.server_sockets import bind_tcp, bind_unix
from tests.integration.process import OF_WORDS, START_SECONDS, Process
from tests.integration.running import words
from tests.integration.test_drain import ROOM
from tests.integration.test_fading import TOKENS
from tests.waiting import PATIENCE


@pytest.mark.real_engine
def test_a_restart_boots_the_last_good_generation_and_not_the_newest_folder(
    tmp_path: Path,
) -> None:
    process = Process(tmp_path)
    process.drop(1)
    with process.running():
        process.drop(2)
        process.live("step_2")
        process.drop(3, "gibberish")
        process.until(lambda: process.said("reload.rejected"))
        before = process.get("/status")
        assert process.stop() == 0
        assert not process.socket.exists()
        assert "SIGTERM received" not in process.log.read_text()  # XLA's handler, in C
        (starting,), (engine,) = process.said("daemon.starting"), process.said("engine.started")
        assert starting["version"] == __version__
        assert starting["sglang_jax"] == engine["engine_version"] != ""
        assert (starting["pid"], starting["socket"]) == (process.child.pid, str(process.socket))
        assert (starting["config"], starting["overridden"]["engine.model"]) == (None, "--set")
        assert str(process.checkpoints) not in str(starting)
    process.drop(4)
    process.log.unlink()
    with process.running():
        (first, *_) = process.said("generation.live")
        assert (first["label"], first["generation"]) == ("step_2", before["generation"])
        assert first["fingerprint"] == before["fingerprint"]
        process.live("step_4")  # and only then what came meanwhile
        refused = process.get("/status")["refused"]
        assert [(r["label"], r["code"]) for r in refused] == [("step_3", "probe")]
        history = [a["outcome"] for a in process.get("/history")["attempts"]]
        assert history == ["live", "live", "rejected", "live", "live"]


def test_an_address_that_is_taken_is_told_with_its_holder_and_may_come_free(
    tmp_path: Path,
) -> None:
    process = Process(tmp_path, command=OF_WORDS)
    process.drop(1)
    with bind_tcp("127.0.0.1:0") as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for setting in ("server.tcp", "metrics.address"):
            with process.begun(sets=[f"{setting}={address}"]):
                assert process.child.wait(START_SECONDS) == AddressTaken.exit_code
    with bind_unix(process.socket):
        assert process.exits() == AddressTaken.exit_code
    holder = f"pid {os.getpid()} ({Path('/proc/self/cmdline').read_text()[:20].split(chr(0))[0]}"
    told = [line for line in process.log.read_text().splitlines() if line[:11] == "hotreload: "]
    assert [holder in line for line in told] == [True] * 3, told
    with process.running():  # it is free
        assert process.stop() == 0


def test_a_second_daemon_on_the_same_state_folder_ends_with_78_and_names_the_first(
    tmp_path: Path,
) -> None:
    (tmp_path / "2").mkdir()
    first = Process(tmp_path, command=OF_WORDS)
    second = Process(tmp_path / "2", command=OF_WORDS)
    second.sets.append(f"state.directory={tmp_path / 'state'}")
    first.drop(1)
    second.drop(1)
    with first.running():
        with second.begun():
            assert second.child.wait(START_SECONDS) == 78
        told = f"is in use by another hotreload (pid {first.child.pid}, socket {first.socket})"
        assert told in second.log.read_text()
        assert not second.socket.exists()
        assert first.ask()["text"] == words(1)
        first.child.kill()
        first.child.wait()
    with second.running():
        assert second.ask()["text"] == words(1)
        assert second.stop() == 0


def test_kill_minus_nine_in_an_attempt_restarts_on_the_last_good_generation(
    tmp_path: Path,
) -> None:
    process = Process(tmp_path, "source.settle=0", command=OF_WORDS)
    process.drop(1)
    with process.running():
        process.drop(2)
        process.until(lambda: process.said("revision.wanted")[1:])
        process.child.kill()
        process.child.wait()
    with process.running():
        (*_, first) = process.said("generation.live")[:2]
        assert first["label"] in ("step_1", "step_2")
        process.live("step_2")  # tried once more
        assert process.ask()["text"] == words(2)


def test_what_answers_badly_at_the_start_is_passed_over_by_the_next_one(tmp_path: Path) -> None:
    process = Process(tmp_path, command=OF_WORDS)
    process.drop(1)
    process.drop(2, "gibberish")  # sound files, and the newest
    assert process.exits() == 70
    assert "what the engine started with is refused" in process.log.read_text()
    with process.running():
        status = process.get("/status")
        assert status["label"] == "step_1"
        assert [(r["label"], r["code"]) for r in status["refused"]] == [("step_2", "probe")]
        assert process.ask()["text"] == words(1)


@pytest.mark.at_night
@pytest.mark.real_engine
def test_a_compilation_cache_torn_by_a_kill_costs_a_compilation_and_no_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    process = Process(tmp_path)
    process.drop(1)
    with process.running():
        assert process.stop() == 0
    (cache,) = (tmp_path / "state" / "compiled").iterdir()
    assert cache.stat().st_mode & 0o777 == 0o700
    compiled = {each.name for each in cache.glob("*-cache")}
    with process.running():
        assert process.stop() == 0
    assert {each.name for each in cache.glob("*-cache")} == compiled
    for entry in sorted(cache.glob("*-cache"))[::4]:  # a start reads many
        os.truncate(entry, entry.stat().st_size // 2)
    with process.running():
        assert process.ask()["text"] == words(1)
        assert "Error reading persistent compilation cache entry" in process.log.read_text()
        assert process.stop() == 0


def test_it_swaps_and_stops_while_it_compiles_for_larger_batches(tmp_path: Path) -> None:
    """Nobody waits for what is compiled beside those who are served: no swap, and no stop."""
    process = Process(tmp_path, "engine.warm_batches=2", command=OF_WORDS)
    process.drop(1)
    with process.running("warming=hang"):
        process.until(lambda: warming(process) == {"done": 0, "total": 2})
        assert process.ask()["text"] == words(1)
        process.drop(2)
        process.until(lambda: process.get("/status")["label"] == "step_2")
        assert process.ask()["text"] == words(2)
        assert warming(process) == {"done": 0, "total": 2}
        assert process.stop() == 0


def warming(process: Process) -> Any:
    return process.get("/status")["replicas"][0]["warming"]


def test_a_start_tells_what_it_took(tmp_path: Path) -> None:
    process = Process(tmp_path, command=OF_WORDS)
    process.drop(1)
    with process.running("probing=delay:0.3"):
        process.until(lambda: process.said("boot.answers"))
        (told,) = process.said("boot.answers")
        (attempt,) = process.get("/history")["attempts"]
        assert process.stop() == 0
    steps = {name: round(took, 3) for name, took in attempt["phases"].items()}
    assert {name: told[name] for name in steps} == steps
    assert {"fetching", "validating", "staging", "building", "probing"} == steps.keys()
    assert sum(steps.values()) < told["seconds"]


def test_a_model_that_answers_badly_is_a_wrong_setting(tmp_path: Path) -> None:
    process = Process(tmp_path, command=OF_WORDS)
    process.drop(1, "gibberish")
    assert process.exits() == 78
    assert "step_1 fails the probe" in process.log.read_text()


@pytest.mark.real_engine
def test_sigterm_answers_what_is_under_way_and_a_second_one_does_not_wait(
    tmp_path: Path,
) -> None:
    process = Process(tmp_path, ROOM)
    process.drop(1)
    long = {"ignore_eos": True, "max_new_tokens": TOKENS}
    with process.running():
        process.ask()  # compiled
        body = json.dumps({"text": "x", "sampling_params": {"temperature": 0, **long}})
        curl = ["curl", "-s", "--unix-socket", str(process.socket), "http://x/generate"]
        client = subprocess.Popen([*curl, "-d", body], stdout=subprocess.PIPE)
        process.until(lambda: process.get("/status")["gate"]["inside"] == 1)
        assert process.stop() == 0
        answer, _ = client.communicate(timeout=PATIENCE)
        assert json.loads(answer)["meta_info"]["completion_tokens"] == TOKENS
    process.log.unlink()
    with process.running():
        client = subprocess.Popen([*curl, "-d", body], stdout=subprocess.PIPE)
        process.until(lambda: process.get("/status")["gate"]["inside"] == 1)
        process.child.send_signal(signal.SIGTERM)
        process.until(lambda: process.said("daemon.stopping"))
        process.child.send_signal(signal.SIGTERM)
        assert process.child.wait(PATIENCE) == 1
        client.communicate(timeout=PATIENCE)


@pytest.mark.real_engine
def test_an_idle_daemon_costs_next_to_nothing_and_status_answers_at_once(
    tmp_path: Path,
) -> None:
    process = Process(tmp_path)
    process.drop(1)
    with process.running():
        process.ask()
        time.sleep(1)  # what the start left to do
        before, began = process.cpu_seconds(), time.monotonic()
        time.sleep(3)  # this is the measurement
        share = (process.cpu_seconds() - before) / (time.monotonic() - began)
        assert share < 0.03, f"{share:.1%} of a core while idle"
        work = []  # and not the time: other tests may run beside this one
        for _ in range(3):
            began = os.times().children_user
            status = subprocess.run(
                [sys.executable, "-m", "hotreload.cli", "status"],
                env={**os.environ, "HOTRELOAD_SOCKET": str(process.socket)},
                capture_output=True,
                text=True,
                check=True,
            )
            work.append(os.times().children_user - began)
        assert "step_1" in status.stdout
        assert min(work) < 0.5, work
        assert process.stop() == 0


def test_in_a_terminal_it_says_when_it_is_ready_and_where_and_ends_of_attempts_are_short(
    tmp_path: Path,
) -> None:
    where = ("server.tcp=127.0.0.1:0", "metrics.address=localhost:0", "log.format=auto")
    process = Process(tmp_path, *where, command=OF_WORDS)
    process.environ = {"NO_COLOR": "1"}
    process.drop(1)
    shown = process.log = Terminal()
    with process.begun():
        process.until(lambda: "\nready: " in shown.read_text(), START_SECONDS)
        log = followed(process)
        process.drop(2)
        process.live("step_2")
        process.drop(3, "nan")
        process.until(lambda: "reload.rejected" in shown.read_text())
        (ready,) = re.findall(r"^ready: (.+)$", shown.read_text(), re.MULTILINE)
        page, socket, metrics = ready.split(", ")
        assert socket == f"socket {process.socket}"
        assert httpx.get(page.removesuffix(" (page)")).text.startswith("<!doctype html>")
        assert "hotreload_build_info" in httpx.get(metrics.removeprefix("metrics ")).text
        assert process.stop() == 0
    sentences = [" ".join(line.split()[2:]) for line in log.communicate()[0].splitlines()[::2]]
    assert [re.sub(r"after .*?(?=[,:]|$)", "after S", each) for each in sentences] == [
        "step_1 is live as generation 1 after S, at the start",
        "step_2 is live as generation 2 after S",
        "step_3 was refused after S: nonfinite",
    ]
    ended = re.findall(r"reload\.(?:live|rejected) .*", shown.read_text())
    assert [re.findall(r"(\w+)=", line) for line in ended] == [
        ["by", "generation", "label", "took"],
        ["generation", "label", "took"],
        ["code", "label", "message", "took"],
    ]


def followed(process: Process) -> "subprocess.Popen[str]":
    """`hotreload log -f`, which has told what ended before."""
    command = [sys.executable, "-m", "hotreload.cli", "log", "-f", "--socket"]
    command.append(str(process.socket))
    log = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert log.stdout is not None
    process.until(lambda: select.select([log.stdout], [], [], 0)[0])
    return log


class Terminal(Path):
    """A terminal in the place of a daemon's log."""

    def __init__(self) -> None:
        super().__init__("terminal")
        self._ours, self._its = pty.openpty()
        os.set_blocking(self._ours, False)
        self._text = ""

    def open(self, *_: Any, **__: Any) -> Any:
        return os.fdopen(self._its, "wb")

    def read_text(self, *_: Any, **__: Any) -> str:
        with suppress(OSError):  # no more by now
            while piece := os.read(self._ours, 65536):
                self._text += piece.decode().replace("\r\n", "\n")
        return self._text


def test_settings_that_cannot_work_are_told_in_one_line_and_exit_78(tmp_path: Path) -> None:
    process = Process(tmp_path, "engine.args={max_total_tokens=2048, chunked_prefil_size=1}")
    process.drop(1)
    with process.begun():
        assert process.child.wait(START_SECONDS) == 78
    said = process.log.read_text()
    assert "chunked_prefil_size" in said
    assert "Traceback" not in said


@pytest.mark.real_engine
@pytest.mark.skipif(any(Path("/dev").glob("accel*")), reason="there is an accelerator")
def test_without_the_accelerator_it_was_told_to_use_it_says_so_in_one_line_and_exits_69(
    tmp_path: Path,
) -> None:
    process = Process(tmp_path)
    process.drop(1)
    with process.begun(through=("env", "JAX_PLATFORMS=tpu")):
        assert process.child.wait(START_SECONDS) == 69
    (line,) = process.said("daemon.no_device")
    assert (line["level"], line["exit_code"]) == ("critical", 69)
    assert "device can be used: Unable to initialize backend 'tpu'" in line["cause"]
    assert "hotreload doctor" in line["cause"]
    assert "\n" not in line["cause"]
    assert process.said("daemon.internal_error") == process.said("boot.passed_over") == []
    assert "Traceback" not in process.log.read_text()
    assert not process.socket.exists()
