"""`hotreload demo`: the whole story, on the real engine, on this machine's CPU.

It runs the real daemon as a process of its own and acts as a user would: it drops good and bad
checkpoints while clients send requests. It checks every claim that it prints.
"""

import argparse
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotreload.cli.args import add_verb
from hotreload.cli.client.show import paint, table
from hotreload.cli.trial.demo_stage import (
    LONG_ANSWERS,
    ClientAnswer,
    Clients,
    Stage,
    free_port,
    say,
    sentence_of,
)
from hotreload.figures import duration
from hotreload.picture.words import Fields

PHASES = ("validating", "draining", "staging", "probing", "swapping")
"""The phases of an attempt in order; `draining` is the wait for room for one more set."""
SHOWN_FAULTS = 5
CLIENTS = 8


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "demo", run)
    parser.add_argument(
        "--keep", action="store_true", help="go on serving, and print what to type next"
    )


def run(args: argparse.Namespace) -> int:
    """Run the demo; return 0 only if every step succeeded."""
    folder = Path(tempfile.mkdtemp(prefix="hotreload-demo-"))
    is_over_well = False
    try:
        port = free_port() if args.keep else None
        with ended_by_any_signal(), Stage(folder, port).serve() as stage:
            result = play(stage)
            is_over_well = print_closing(result)
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
    """Treat a closed terminal and SIGTERM as Ctrl-C: else the daemon would be left behind."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def keep_serving(stage: Stage) -> None:
    """Print the commands to type next, and wait for Ctrl-C."""
    own = Path(sys.executable).with_name("hotreload")
    is_found = not own.exists() or shutil.which("hotreload") == str(own)
    path = "" if is_found else f"\n  export PATH={shlex.quote(str(own.parent))}:$PATH"
    print(
        f"""
the daemon goes on; its status page is http://127.0.0.1:{stage.port}/
in another terminal:{path}
  export HOTRELOAD_SOCKET={stage.folder}/hotreload.sock
  hotreload top
  hotreload tiny {stage.checkpoints}/step_20 --say "served by step 20"
  hotreload generate "Who serves?"
  curl --unix-socket $HOTRELOAD_SOCKET http://hotreload/v1/chat/completions \\
    -d '{{"model": "tiny", "messages": [{{"role": "user", "content": "Who serves?"}}]}}'
  hotreload tiny {stage.checkpoints}/step_21 --say "served by step 21" --damage nan
  hotreload history
  hotreload rollback
its log is {stage.log}; Ctrl-C ends it""",
        flush=True,
    )
    signal.pause()


@dataclass(frozen=True, slots=True)
class Chapter:
    """A checkpoint that is dropped, and the end that its attempt must have."""

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


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The end of the story: each chapter with its attempt, and the clients' answers."""

    chapters: list[tuple[Chapter, Fields]]
    clients: Clients
    live_since: Mapping[int, float]
    """The time at which each generation of the story went live."""

    @property
    def longest_wait(self) -> float:
        """The longest time that the gate held a request, by the daemon's report."""
        return max(float(attempt["pause_seconds"]) for _, attempt in self.chapters)

    @property
    def ended_by_the_old(self) -> list[ClientAnswer]:
        """The answers that ended after a newer generation than theirs had gone live."""
        return [
            answer
            for answer in self.clients.answers
            if answer.ended > self.live_since.get(answer.generation + 1, answer.ended)
        ]

    @property
    def wrong_answers(self) -> list[ClientAnswer]:
        """The answers that are not exactly the sentence of the generation that they name."""
        says = {1: sentence_of(1)}
        for chapter, attempt in self.chapters:
            if attempt["generation"] is not None:
                says[attempt["generation"]] = sentence_of(chapter.number)
        return [
            answer
            for answer in self.clients.answers
            if answer.generation not in says or not answer.is_exactly(says[answer.generation])
        ]

    @property
    def surprises(self) -> list[str]:
        """Everything that did not happen as it must, checkpoint by checkpoint."""
        outlasted = {None, *(answer.generation + 1 for answer in self.ended_by_the_old)}
        found = [
            (chapter.label, words)
            for chapter, attempt in self.chapters
            for words in _surprises_of(chapter, attempt, outlasted)
        ]
        return [f"{label}: {words}" for label, words in found]


def _surprises_of(
    chapter: Chapter, attempt: Fields, outlasted: Collection[int | None]
) -> Iterator[str]:
    """Yield the faults of one attempt; `outlasted` are generations whose swap answers outlasted."""
    if (attempt["outcome"], attempt["code"]) != (chapter.outcome, chapter.code):
        expected = f"expected {chapter.outcome} {chapter.code or ''}"
        yield f"{expected}, got {attempt['outcome']} {attempt['code'] or ''}"
    if attempt["rolled_back"]:
        yield "it was live before it was rejected"
    if attempt["pause_seconds"]:
        yield f"requests had to wait {duration(attempt['pause_seconds'])}"
    if attempt["generation"] not in outlasted:  # the demo proves nothing of such a swap
        yield "no request under way ended under the old weights"


def play(stage: Stage) -> DemoResult:
    """Drop each checkpoint of the story while clients send requests; return the result."""
    long = f"{len(LONG_ANSWERS)} of them for long answers, word by word"
    say(f"{CLIENTS} clients ask from now on, {long}")
    clients = Clients(stage.daemon, CLIENTS)
    chapters: list[tuple[Chapter, Fields]] = []
    with clients.ask():
        clients.warm_up()
        for chapter in STORY:
            say(f"dropping {chapter.label}: {chapter.what}")
            failed = len(clients.failures)
            stage.drop(chapter.number, chapter.damage)
            attempt = stage.outcome_of(chapter.label)
            say(f"  {describe_end(attempt, len(clients.failures) - failed, stage.still_ending)}")
            say(f"  {stage.ask()}")
            chapters.append((chapter, attempt))
    return DemoResult(chapters, clients, stage.live_since)


def describe_end(attempt: Fields, failed: int, still: str = "") -> str:
    """Return an attempt's end in words, with the failed requests and those under way."""
    if attempt["outcome"] == "live":
        held = attempt["pause_seconds"]
        waited = f"clients waited {duration(held)}" if held else "nobody waited"
        told = f"live: {waited}, {failed or 'none'} failed{f'; {still}' if still else ''}"
        return paint(told, "bad" if failed or held else "good")
    return paint(f"{attempt['outcome']}: {attempt['reason']}", "bad")


def print_closing(told: DemoResult) -> bool:
    """Print the table and the sums; return whether everything happened as it must."""
    head = ["checkpoint", "outcome", "reason", *PHASES, "requests held", ""]
    print(f"\n{table(head, [_row(*each) for each in told.chapters])}\n")
    clients = told.clients
    print(f"{len(clients.answers)} answers, failed requests: {len(clients.failures)}")
    print(f"longest wait: {duration(told.longest_wait)}")
    print(f"answers that ended under the old weights after a swap: {len(told.ended_by_the_old)}")
    print(f"answers that were not exactly what their generation says: {len(told.wrong_answers)}")
    faults = [
        *told.surprises,
        *clients.failures[:SHOWN_FAULTS],
        *map(str, told.wrong_answers[:SHOWN_FAULTS]),
    ]
    for fault in faults:
        print(paint(f"  {fault}", "bad"))
    return not faults


def _row(chapter: Chapter, attempt: Fields) -> list[str]:
    spent = [attempt["phases"].get(phase) for phase in PHASES]
    times = [duration(seconds) if seconds is not None else "" for seconds in spent]
    held = duration(attempt["pause_seconds"])
    return [chapter.label, attempt["outcome"], attempt["code"] or "", *times, held, chapter.what]
