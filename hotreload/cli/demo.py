"""`hotreload demo`: the whole story, on the real engine, on this machine's CPU.

Runs the real daemon as a process of its own and does what a user would do: drops checkpoints,
good and bad, while clients ask. The demo checks every claim it prints.
"""

import argparse
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotreload.cli.client import DaemonClient, Where
from hotreload.cli.demo_clients import Clients, request_for
from hotreload.cli.exits import Unreachable
from hotreload.cli.show import duration, painted, table
from hotreload.errors import HotReloadError

EXPLAINED = """\
Runs the whole story on this machine's CPU with tiny checkpoints on the real sglang-jax engine:
boots, swaps twice under load, refuses three broken checkpoints and rolls back one that talks
nonsense, while clients ask all the time. The first start compiles: 10 to 40 s, later ones less.

Everything, the daemon's log too, lies in a new folder under $TMPDIR (/tmp). The folder is removed
after a good end and kept after a bad one. The demo needs no network, no settings file and no root.

examples:
  hotreload demo
  hotreload demo --keep     goes on serving, and prints commands to type in another terminal

Exits 0 only if all of it happened, else 1."""

START_SECONDS = 180
CHAPTER_SECONDS = 60
CLIENTS = 8
ENGINE_ARGS = (
    "{context_length=256, max_total_tokens=4096, max_running_requests=8, chunked_prefill_size=256}"
)
"""Small limits make quick answers: on a CPU each step is padded to the largest size allowed."""

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Chapter:
    """A checkpoint that is dropped, and what must come of it."""

    number: int
    what: str
    outcome: str = "live"
    code: str | None = None
    damage: str | None = None

    @property
    def label(self) -> str:
        """The folder's name."""
        return f"step_{self.number}"


STORY = (
    Chapter(2, "a good checkpoint"),
    Chapter(3, "the next one"),
    Chapter(4, "one cut short", "rejected", "truncated", "truncated"),
    Chapter(5, "one of another shape", "rejected", "shape", "wrong-shape"),
    Chapter(6, "one with a NaN in it", "rejected", "nonfinite", "nan"),
    Chapter(7, "one that talks nonsense", "rejected", "probe", "gibberish"),
)


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "demo",
        help="see it all happen on this machine's CPU, in about 20 seconds",
        description=EXPLAINED,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--keep", action="store_true", help="go on serving, and print what to type next"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Tell the story; 0 only if all of it happened."""
    folder = Path(tempfile.mkdtemp(prefix="hotreload-demo-"))
    is_over_well = False
    try:
        port = free_port() if args.keep else None
        with ended_by_any_signal(), Stage(folder, port).serving() as stage:
            told = tell(stage)
            is_over_well = print_closing(told)
            if args.keep:
                keep_serving(stage)
    except KeyboardInterrupt:
        print("\nstopped")
    finally:
        if is_over_well:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            print(f"everything is kept in {folder}; the daemon's log is {folder}/hotreload.log")
    return 0 if is_over_well else 1


@contextmanager
def ended_by_any_signal() -> Iterator[None]:
    """Treat a closed terminal and SIGTERM as Ctrl-C: else our daemon would be left behind."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Stage:
    """A daemon, its folder of checkpoints, and what is heard from it."""

    def __init__(self, folder: Path, port: int | None) -> None:
        self.folder = folder
        self.port = port
        """Where a browser finds the status page; None for nowhere."""
        self.checkpoints = folder / "checkpoints"
        self.log = folder / "hotreload.log"
        self.daemon = DaemonClient(Where(folder / "hotreload.sock", "the demo"))
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
            threading.Thread(target=self._listen, daemon=True).start()
            yield self
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()

    def _command(self) -> list[str]:
        sets: Fields = {
            "engine.model": self.checkpoints / "step_1",
            "engine.args": ENGINE_ARGS,
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

    def ask(self, prompt: str = "Who serves?") -> str:
        """Ask once; return the answer, and which generation made it."""
        answer = self.daemon.ask("POST", "/generate", request_for(prompt)).fields
        return f"generation {answer['meta_info']['generation']} says “{answer['text']}”"

    def _listen(self) -> None:
        try:
            for event in self.daemon.events("GET", "/events"):
                if "outcome" in event:
                    self._heard.put(event)
        except HotReloadError:
            return  # the daemon is stopping

    def outcome_of(self, label: str) -> Fields:
        """Wait for the end of the attempt at a checkpoint."""
        deadline = time.monotonic() + CHAPTER_SECONDS
        while True:
            try:
                event = self._heard.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise Unreachable(f"nothing came of {label} in {CHAPTER_SECONDS} s") from None
            if event["label"] == label:
                return event


@dataclass(frozen=True, slots=True)
class Told:
    """What happened: each chapter with its attempt, and what the clients saw."""

    chapters: list[tuple[Chapter, Fields]]
    clients: Clients

    @property
    def mixed(self) -> list[tuple[int, str]]:
        """Answers that are not exactly what the generation named in them says."""
        says = {1: words(1)}
        for chapter, attempt in self.chapters:
            if attempt["generation"] is not None:
                says[attempt["generation"]] = words(chapter.number)
        return [
            (made_by, text) for made_by, text in self.clients.answers if says.get(made_by) != text
        ]

    @property
    def surprises(self) -> list[str]:
        """Chapters that did not end as they must."""
        return [
            f"{chapter.label}: expected {chapter.outcome} {chapter.code or ''}, "
            f"got {attempt['outcome']} {attempt['code'] or ''}"
            for chapter, attempt in self.chapters
            if (attempt["outcome"], attempt["code"]) != (chapter.outcome, chapter.code)
        ]


def tell(stage: Stage) -> Told:
    """Drop each checkpoint of the story, while clients ask."""
    say(f"{CLIENTS} clients ask from now on, half of them streaming")
    clients = Clients(stage.daemon, CLIENTS)
    chapters: list[tuple[Chapter, Fields]] = []
    with clients.asking():
        clients.warm_up()
        for chapter in STORY:
            say(f"dropping {chapter.label}: {chapter.what}")
            failed = len(clients.failures)
            stage.drop(chapter.number, chapter.damage)
            attempt = stage.outcome_of(chapter.label)
            say(f"  {ending(attempt, len(clients.failures) - failed)}")
            say(f"  {stage.ask()}")
            chapters.append((chapter, attempt))
    return Told(chapters, clients)


def ending(attempt: Fields, failed: int) -> str:
    """How an attempt ended, in words, and how many requests failed meanwhile."""
    if attempt["outcome"] == "live":
        waited = f"live: clients waited {duration(attempt['pause_seconds'])}"
        words = f"{waited}, {failed or 'none'} failed"
        return painted(words, "bad" if failed else "good")
    how = "live for a moment, rolled back" if attempt["rolled_back"] else "refused"
    return painted(f"{how}: {attempt['reason']}", "bad")


def print_closing(told: Told) -> bool:
    """Print the table and the sums; return whether all of it happened."""
    phases = ("validating", "staging", "draining", "swapping", "probing", "rolling_back")
    rows = []
    for chapter, attempt in told.chapters:
        outcome = "rolled back" if attempt["rolled_back"] else attempt["outcome"]
        spent = [attempt["phases"].get(phase) for phase in phases]
        times = [duration(seconds) if seconds is not None else "" for seconds in spent]
        pause = duration(attempt["pause_seconds"]) if attempt["pause_seconds"] else ""
        rows.append([chapter.label, outcome, attempt["code"] or "", *times, pause, chapter.what])
    head = ["checkpoint", "outcome", "reason", *(p.replace("_", " ") for p in phases), "pause", ""]
    print(f"\n{table(head, rows)}\n")
    clients = told.clients
    faults = [*told.surprises, *clients.failures[:5], *map(str, told.mixed[:5])]
    print(f"{len(clients.answers)} answers, failed requests: {len(clients.failures)}")
    print(f"answers that were not exactly what their generation says: {len(told.mixed)}")
    for fault in faults:
        print(painted(f"  {fault}", "bad"))
    return not faults


def keep_serving(stage: Stage) -> None:
    """Say what to type next, and wait for Ctrl-C."""
    command = "hotreload" if shutil.which("hotreload") else f"{sys.executable} -m hotreload.cli"
    say(
        f"""
the daemon goes on; its status page is http://127.0.0.1:{stage.port}/
in another terminal:
  export HOTRELOAD_SOCKET={stage.folder}/hotreload.sock
  {command} top
  {command} tiny {stage.checkpoints}/step_20 --say "served by step 20"
  {command} generate "Who serves?"
  curl --unix-socket $HOTRELOAD_SOCKET http://hotreload/v1/chat/completions \\
    -d '{{"model": "tiny", "messages": [{{"role": "user", "content": "Who serves?"}}]}}'
  {command} tiny {stage.checkpoints}/step_21 --say "served by step 21" --damage nan
  {command} history
  {command} rollback
its log is {stage.log}; Ctrl-C ends it"""
    )
    signal.pause()


def words(number: int) -> str:
    """What the checkpoint of a step says."""
    return f"served by step {number}"


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def environment() -> dict[str, str]:
    """The daemon's environment: on the CPU, and without XLA's remarks in its log."""
    defaults = {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HOTRELOAD_")}
    return {**defaults, **kept, "JAX_PLATFORMS": "cpu"}


def say(line: str) -> None:
    """Print a line as it happens."""
    print(line, flush=True)
