"""The stage of the demo: a real daemon in a process of its own, its checkpoints, its clients."""

import itertools
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hotreload.cli.trial.tiny import QUICK_SETTINGS
from hotreload.client.synchronous import Client
from hotreload.errors import HotReloadError, Unreachable
from hotreload.figures import duration
from hotreload.picture.words import Fields, older_text

START_SECONDS = 180
CHAPTER_SECONDS = 60

SHORT_ANSWER = 16
"""A bound on the tokens of a short answer, which ends before it."""
LONG_ANSWERS = (80, 120, 160)
"""The tokens of the first clients' answers, which repeat the sentence.

They differ: at any moment one of these clients is in the middle of an answer.
"""


class Stage:
    """A daemon, its folder of checkpoints, and its events."""

    def __init__(self, folder: Path, port: int | None) -> None:
        self.folder = folder
        self.port = port
        """The port of the status page; None for no page."""
        self.checkpoints = folder / "checkpoints"
        self.log = folder / "hotreload.log"
        self.daemon = Client(folder / "hotreload.sock", named_by="the demo")
        self.live_since: dict[int, float] = {}
        """The time at which each generation went live, by the received events."""
        self._heard: queue.Queue[Fields] = queue.Queue()

    def drop(self, number: int, damage: str | None = None) -> None:
        """Write a checkpoint, whose folder appears in one rename, as a trainer's should."""
        from hotreload.tiny import write_tiny

        write_tiny(self.checkpoints / f"step_{number}", sentence_of(number), damage=damage)

    @contextmanager
    def serve(self) -> Iterator["Stage"]:
        """Run `hotreload serve` until the block ends."""
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
            **QUICK_SETTINGS,
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
                time.sleep(0.2)  # another process can only poll
        raise Unreachable(f"the daemon did not start; its log:\n{self.log.read_text()[-2000:]}")

    def _check_mode(self) -> None:
        status = self.daemon.get("/status")
        if status["mode"] != "overlap":
            why = status["mode_reason"]
            raise HotReloadError(f"this engine drains, so there is nothing to see: {why}")

    def ask(self, prompt: str = "Who serves?") -> str:
        """Send one request; return the answer and its generation."""
        answer = self.daemon.ask("POST", "/generate", request_for(prompt)).fields
        return f"generation {answer['meta_info']['generation']} says “{answer['text']}”"

    @property
    def still_ending(self) -> str:
        """Return the requests that older weights still answer, in words; empty for none."""
        return older_text(self.daemon.get("/status")["answering"][1:])

    def _listen(self) -> None:
        try:
            for event in self.daemon.events():
                if event["event"] == "generation.live":
                    self.live_since[event["generation"]] = time.monotonic()
                elif "outcome" in event or event.get("phase") == "draining":
                    self._heard.put(event)
        except HotReloadError:
            return  # the daemon is stopping

    def outcome_of(self, label: str) -> Fields:
        """Wait for the end of a checkpoint's attempt and return it; print if it waits for room."""
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
    """Return a port on which no process listens now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def environment() -> dict[str, str]:
    """Return the daemon's environment, for the CPU."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOTRELOAD_")}
    return {**kept, "JAX_PLATFORMS": "cpu"}


def say(line: str) -> None:
    """Print a line as it happens."""
    print(line, flush=True)


@dataclass(frozen=True, slots=True)
class ClientAnswer:
    """An answer that a client received: its generation, and the time of its last word."""

    generation: int
    text: str
    ended: float
    tokens: int | None = None
    """The number of tokens, for an answer that repeats the sentence; None for a short one."""

    def is_exactly(self, says: str) -> bool:
        """Return whether this is word for word the answer of weights that say the sentence."""
        return self.text == (says if self.tokens is None else repeat(says, self.tokens))


@dataclass
class Clients:
    """Clients that send a request after each answer; `answers` keeps all answers."""

    daemon: Client
    count: int
    answers: list[ClientAnswer] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    _enough: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def ask(self) -> Iterator["Clients"]:
        """Send requests until the block ends."""
        with ThreadPoolExecutor(self.count) as threads:
            for number in range(self.count):
                threads.submit(self._ask, number)
            try:
                yield self
            finally:
                self._enough.set()

    def warm_up(self) -> None:
        """Send requests until the engine has compiled for this many at a time."""
        while len(self.answers) < 5 * self.count and not self.failures:
            time.sleep(0.05)

    def _ask(self, number: int) -> None:
        tokens = LONG_ANSWERS[number] if number < len(LONG_ANSWERS) else None
        request = request_for(f"Client {number} asks: who serves?", tokens)
        while not self._enough.is_set():
            try:
                if tokens or number % 2:
                    *_, last = self.daemon.stream("POST", "/generate", request | {"stream": True})
                else:
                    last = self.daemon.ask("POST", "/generate", request).fields
                made_by, text = last["meta_info"]["generation"], last["text"]
                self.answers.append(ClientAnswer(made_by, text, time.monotonic(), tokens))
            except (HotReloadError, KeyError, ValueError) as failure:
                self.failures.append(f"{type(failure).__name__}: {failure}")


def request_for(prompt: str, tokens: int | None = None) -> Fields:
    """Return a greedy request, for an answer that ends by itself or has so many tokens."""
    params: Fields = {"temperature": 0, "max_new_tokens": tokens or SHORT_ANSWER}
    return {"text": prompt, "sampling_params": params | {"ignore_eos": tokens is not None}}


def sentence_of(number: int) -> str:
    """Return the sentence of a step's checkpoint."""
    return f"served by step {number}"


def repeat(says: str, tokens: int) -> str:
    """Return the text of tiny weights in so many tokens without a stop; the end is a token, too."""
    first, *others = says.split()
    sentence = [first, *(f" {word}" for word in others), ""]
    return "".join(itertools.islice(itertools.cycle(sentence), tokens))
