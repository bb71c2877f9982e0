"""The daemon as a process of its own: restarts, signals, deaths, and what it costs when idle."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hotreload.cli.client import Daemon, Where
from hotreload.errors import HotReloadError
from hotreload.tiny import write_tiny
from tests.integration.running import ENGINE_ARGS, words

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(240)]

START_SECONDS = 90
TICK = 0.05


class Process:
    """`hotreload serve` in a folder, and its log."""

    def __init__(self, folder: Path, *sets: str) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.socket = folder / "s"
        self.daemon = Daemon(Where(self.socket, "the test"))
        self.log = folder / "log"
        self.sets = [
            f"engine.model={self.checkpoints / 'step_1'}",
            f"engine.args={ENGINE_ARGS}",
            f"source.path={self.checkpoints}",
            "source.settle=0.2",
            f"server.socket={self.socket}",
            "metrics.address=''",
            f"state.directory={folder / 'state'}",
            "log.format=json",
            *sets,
        ]
        self.child: subprocess.Popen[bytes]

    def drop(self, number: int, damage: str | None = None) -> None:
        write_tiny(self.checkpoints / f"step_{number}", words(number), damage=damage)

    @contextmanager
    def running(self) -> Iterator["Process"]:
        self.start()
        try:
            yield self
        finally:
            if self.child.poll() is None:
                self.child.kill()
            self.child.wait()

    def start(self) -> None:
        command = [sys.executable, "-m", "hotreload.cli", "serve"]
        options = [f"--set={setting}" for setting in self.sets]
        with self.log.open("ab") as log:
            self.child = subprocess.Popen([*command, *options], stderr=log)
        self.until(lambda: self.get("/readyz") is not None, START_SECONDS)

    def get(self, route: str) -> Any:
        with suppress(HotReloadError):
            return self.daemon.get(route)
        return None

    def until(self, holds: Any, seconds: float = 30) -> None:
        """From outside a process nothing but a look tells; each look is cheap."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert self.child.poll() is None, self.log.read_text()[-3000:]
            assert time.monotonic() < deadline, self.log.read_text()[-3000:]
            time.sleep(TICK)

    def live(self, label: str) -> None:
        self.until(lambda: (self.get("/status") or {}).get("label") == label)

    def ask(self, **more: Any) -> dict[str, Any]:
        sampling = {"temperature": 0, "max_new_tokens": 12, **more}
        request = {"text": "Who serves?", "sampling_params": sampling}
        return self.daemon.ask("POST", "/generate", request).fields

    def said(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line[:1] == "{"]
        return [line for line in lines if line["event"] == event]

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> int:
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(30)


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
        assert history == ["live", "rejected", "live"]


def test_kill_minus_nine_in_an_attempt_restarts_on_the_last_good_generation(
    tmp_path: Path,
) -> None:
    process = Process(tmp_path, "source.settle=0")
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


def test_sigterm_answers_what_is_under_way_and_a_second_one_does_not_wait(
    tmp_path: Path,
) -> None:
    process = Process(tmp_path)
    process.drop(1)
    long = {"ignore_eos": True, "max_new_tokens": 100}
    with process.running():
        process.ask(**long)  # compiled
        body = json.dumps({"text": "x", "sampling_params": {"temperature": 0, **long}})
        curl = ["curl", "-s", "--unix-socket", str(process.socket), "http://x/generate"]
        client = subprocess.Popen([*curl, "-d", body], stdout=subprocess.PIPE)
        process.until(lambda: process.get("/status")["gate"]["inside"] == 1)
        assert process.stop() == 0
        answer, _ = client.communicate(timeout=10)
        assert json.loads(answer)["meta_info"]["completion_tokens"] == 100
    process.log.unlink()
    with process.running():
        endless = json.dumps(
            {"text": "x", "sampling_params": {"ignore_eos": True, "max_new_tokens": 240}}
        )
        client = subprocess.Popen([*curl, "-d", endless], stdout=subprocess.PIPE)
        process.until(lambda: process.get("/status")["gate"]["inside"] == 1)
        process.child.send_signal(signal.SIGTERM)
        process.until(lambda: process.said("daemon.stopping"))
        process.child.send_signal(signal.SIGTERM)
        assert process.child.wait(5) == 1
        client.communicate(timeout=10)


def test_an_idle_daemon_costs_next_to_nothing_and_status_answers_at_once(
    tmp_path: Path,
) -> None:
    process = Process(tmp_path)
    process.drop(1)
    with process.running():
        process.ask()
        time.sleep(1)  # what the start left to do
        before, began = process.cpu_seconds(), time.monotonic()
        time.sleep(6)  # this is the measurement
        share = (process.cpu_seconds() - before) / (time.monotonic() - began)
        assert share < 0.03, f"{share:.1%} of a core while idle"
        times = []
        for _ in range(5):
            began = time.monotonic()
            status = subprocess.run(
                [sys.executable, "-m", "hotreload.cli", "status"],
                env={**os.environ, "HOTRELOAD_SOCKET": str(process.socket)},
                capture_output=True,
                text=True,
                check=True,
            )
            times.append(time.monotonic() - began)
        assert "step_1" in status.stdout
        assert sorted(times)[2] < 0.5, times
        assert process.stop() == 0


def test_settings_that_cannot_work_are_told_in_one_line_and_exit_78(tmp_path: Path) -> None:
    process = Process(tmp_path, "engine.args={max_total_tokens=2048, chunked_prefil_size=1}")
    process.drop(1)
    command = [sys.executable, "-m", "hotreload.cli", "serve"]
    run = subprocess.run(
        [*command, *(f"--set={setting}" for setting in process.sets)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert run.returncode == 78
    assert "chunked_prefil_size" in run.stderr
    assert "Traceback" not in run.stderr
