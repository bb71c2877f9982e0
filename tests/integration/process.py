"""The daemon as a process of its own, looked at from outside."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from hotreload.client.synchronous import Client
from hotreload.errors import HotReloadError
from hotreload.failpoints import VARIABLE
from hotreload.tiny import write_tiny
from tests.children import cpu_seconds_of
from tests.integration.forked import Forked, would_import_the_same, zygote_of
from tests.integration.running import ENGINE_ARGS, client_of, words
from tests.integration.zygote import OF_A_RANK, OF_WORDS, REAL
from tests.waiting import PATIENCE, look_until

__all__ = ["OF_A_RANK", "OF_WORDS", "REAL", "START_SECONDS", "Process"]

START_SECONDS = 2 * PATIENCE


class Process:
    """`hotreload serve` in a folder, and its log; a file of settings there is read, too."""

    def __init__(self, folder: Path, *sets: str, command: str = REAL) -> None:
        self.folder = folder
        self.command = command
        self.checkpoints = folder / "checkpoints"
        self.socket = folder / "s"
        self.daemon = Client(self.socket, named_by="the test")
        self.log = folder / "log"
        self.config = folder / "hotreload.toml"
        self.sets = [
            f"engine.model={self.checkpoints / 'step_1'}",
            f"engine.args={ENGINE_ARGS}",
            "engine.staging_priority=normal",
            "engine.warm_batches=0",
            "compare.report=false",  # what is about it says so: it compiles more at each start
            "server.workers=0",  # whatever the machine has; who is about them says so
            f"source.path={self.checkpoints}",
            "source.settle=0.2",
            f"server.socket={self.socket}",
            "metrics.address=''",
            f"state.directory={folder / 'state'}",
            "log.format=json",
            *sets,
        ]
        self.environ: dict[str, str] = {}
        """Of each life, over the environment of the tests; nothing that is read at an import."""
        self.child: subprocess.Popen[bytes] | Forked

    def drop(self, number: int, damage: str | None = None) -> None:
        write_tiny(self.checkpoints / f"step_{number}", words(number), damage=damage)

    @contextmanager
    def running(self, failpoints: str = "", through: Sequence[str] = ()) -> Iterator["Process"]:
        """Serve from here to the end of the block, whichever way it ends."""
        with self.begun(failpoints, through):
            self.until(lambda: self.get("/readyz") is not None, START_SECONDS)
            yield self

    @contextmanager
    def begun(
        self, failpoints: str = "", through: Sequence[str] = (), sets: Sequence[str] = ()
    ) -> Iterator[None]:
        """Started, and not waited for; it ends with the block."""
        self.start(failpoints, through, sets)
        try:
            yield
        finally:
            if self.child.poll() is None:
                self.child.kill()
            self.child.wait()

    def exits(self) -> int:
        """Start it, and wait until it has ended by itself: its exit code."""
        with self.begun():
            return self.child.wait(START_SECONDS)

    def start(
        self, failpoints: str = "", through: Sequence[str] = (), sets: Sequence[str] = ()
    ) -> None:
        """Start it, by way of another command if one is given; `sets` are for this life alone.

        It is forked, unless another command comes first or an import would find another world.
        """
        arguments = self.arguments(sets)
        env = {**os.environ, **self.environ, VARIABLE: failpoints}
        with self.log.open("ab") as log:
            if would_import_the_same() and not through:
                self.child = zygote_of(self.command).begin(self.command, arguments, env, log)
                return
            command = [*through, sys.executable, "-m", self.command]
            self.child = subprocess.Popen([*command, *arguments], stderr=log, env=env)

    def arguments(self, sets: Sequence[str]) -> list[str]:
        """Its verb, with what that is told; `sets` are for this life alone."""
        told = ["serve", *(f"--set={setting}" for setting in (*self.sets, *sets))]
        return [*told, f"--config={self.config}"] if self.config.exists() else told

    def get(self, route: str) -> Any:
        with suppress(HotReloadError):
            return self.daemon.get(route)
        return None

    def until(self, holds: Any, seconds: float = PATIENCE) -> None:
        def is_so() -> bool:
            found = bool(holds())
            assert found or self.child.poll() is None, self._end_of_log()
            return found

        look_until(is_so, self._end_of_log, seconds=seconds)

    def _end_of_log(self) -> str:
        return self.log.read_text()[-3000:]

    def live(self, label: str) -> None:
        self.until(lambda: (self.get("/status") or {}).get("label") == label)

    def ask(self, **more: Any) -> dict[str, Any]:
        sampling = {"temperature": 0, "max_new_tokens": 12, **more}
        request = {"text": "Who serves?", "sampling_params": sampling}
        return self.daemon.ask("POST", "/generate", request).fields

    def client(self) -> httpx.AsyncClient:
        return client_of(self.socket)

    def said(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line[:1] == "{"]
        return [line for line in lines if line["event"] == event]

    def cpu_seconds(self) -> float:
        return cpu_seconds_of(self.child.pid)

    def stop(self) -> int:
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(PATIENCE)
