"""The stage of the demo: a real daemon in a process of its own, and its folder of checkpoints."""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hotreload.cli.client import DaemonClient, Where
from hotreload.cli.demo_clients import request_for
from hotreload.cli.demo_story import words
from hotreload.cli.exits import Unreachable
from hotreload.cli.tiny import QUICK
from hotreload.errors import HotReloadError
from hotreload.figures import duration
from hotreload.picture.words import older_text

START_SECONDS = 180
CHAPTER_SECONDS = 60

Fields = dict[str, Any]


class Stage:
    """A daemon, its folder of checkpoints, and what is heard from it."""

    def __init__(self, folder: Path, port: int | None) -> None:
        self.folder = folder
        self.port = port
        """Where a browser finds the status page; None for nowhere."""
        self.checkpoints = folder / "checkpoints"
        self.log = folder / "hotreload.log"
        self.daemon = DaemonClient(Where(folder / "hotreload.sock", "the demo"))
        self.live_since: dict[int, float] = {}
        """When each generation went live, of those that did while we listened."""
        self._heard: queue.Queue[Fields] = queue.Queue()

    def drop(self, number: int, damage: str | None = None) -> None:
        """Write a checkpoint; its folder appears at once and whole, as it should."""
        from hotreload.tiny import write_tiny

        write_tiny(self.checkpoints / f"step_{number}", words(number), damage=damage)

    @contextmanager
    def serving(self) -> Iterator["Stage"]:
        """Run `hotreload serve` until the end of the block."""
        self.drop(1)
        say("starting the real sglang-jax engine on this CPU (10 to 40 s) …")
        started = time.monotonic()
        with self.log.open("wb") as log:
            process = subprocess.Popen(self._command(), stderr=log, env=environment())
        try:
            self._await_start(process)
            say(f"serving after {duration(time.monotonic() - started)}: {self.ask()}")
            self._check_mode()
            threading.Thread(target=self._listen, daemon=True).start()
            yield self
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()

    def _command(self) -> list[str]:
        sets: Fields = {
            "engine.model": self.checkpoints / "step_1",
            **QUICK,
            "source.path": self.checkpoints,
            "source.settle": 0.5,
            "source.patience": 1.0,
            "server.socket": self.folder / "hotreload.sock",
            "server.model_name": "tiny",
            "metrics.address": "",
            "state.directory": self.folder / "state",
        }
        if self.port is not None:
            sets["server.tcp"] = f"127.0.0.1:{self.port}"
        options = [f"--set={name}={value}" for name, value in sets.items()]
        return [sys.executable, "-m", "hotreload.cli", "serve", *options]

    def _await_start(self, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            try:
                self.daemon.get("/readyz")
                return
            except HotReloadError:
                time.sleep(0.2)  # a process outside can only ask again
        raise Unreachable(f"the daemon did not start; its log:\n{self.log.read_text()[-2000:]}")

    def _check_mode(self) -> None:
        status = self.daemon.get("/status")
        if status["mode"] != "overlap":
            why = status["mode_reason"]
            raise HotReloadError(f"this engine drains, so there is nothing to see: {why}")

    def ask(self, prompt: str = "Who serves?") -> str:
        """Ask once; return the answer, and which generation made it."""
        answer = self.daemon.ask("POST", "/generate", request_for(prompt)).fields
        return f"generation {answer['meta_info']['generation']} says “{answer['text']}”"

    @property
    def still_ending(self) -> str:
        """Who is still answered by older weights than the live ones; empty for nobody."""
        return older_text(self.daemon.get("/status")["answering"][1:])

    def _listen(self) -> None:
        try:
            for event in self.daemon.events("GET", "/events"):
                if event["event"] == "generation.live":
                    self.live_since[event["generation"]] = time.monotonic()
                elif "outcome" in event or event.get("phase") == "draining":
                    self._heard.put(event)
        except HotReloadError:
            return  # the daemon is stopping

    def outcome_of(self, label: str) -> Fields:
        """Wait for the end of the attempt at a checkpoint, and tell when it waits for room."""
        deadline = time.monotonic() + CHAPTER_SECONDS
        while True:
            try:
                event = self._heard.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise Unreachable(f"nothing came of {label} in {CHAPTER_SECONDS} s") from None
            if "outcome" not in event:
                still = self.still_ending
                say(f"  the checkpoint waits for room, requests do not{still and f': {still}'}")
            elif event["label"] == label:
                return event


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def environment() -> dict[str, str]:
    """The daemon's environment: on the CPU."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOTRELOAD_")}
    return {**kept, "JAX_PLATFORMS": "cpu"}


def say(line: str) -> None:
    """Print a line as it happens."""
    print(line, flush=True)
