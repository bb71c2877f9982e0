"""`hotreload demo`: the whole story, on the real engine, on this machine's CPU.

Runs the real daemon as a process of its own and does what a user would do: drops checkpoints,
good and bad, while clients ask. The demo checks every claim it prints.
"""

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hotreload.cli.demo_clients import LONG, Clients
from hotreload.cli.demo_stage import Stage, free_port, say
from hotreload.cli.demo_story import STORY, Chapter
from hotreload.cli.demo_told import Told, print_closing
from hotreload.cli.show import painted
from hotreload.figures import duration

EXPLAINED = """\
Runs the whole story on this machine's CPU with tiny checkpoints on the real sglang-jax engine:
boots, swaps twice while clients ask, some of them for long answers, and refuses four broken
checkpoints: three fail the checks, and one talks nonsense to the probe, before it has answered
anybody. The first start compiles: 10 to 40 s, later ones less.

Everything, the daemon's log too, lies in a new folder under $TMPDIR (/tmp). The folder is removed
after a good end and kept after a bad one. The demo needs no network, no settings file and no root.

examples:
  hotreload demo
  hotreload demo --keep     goes on serving, and prints commands to type in another terminal

Exits 0 only if all of it happened, nobody had to wait for a swap, no request failed and every
answer was exactly what its generation says; else 1."""

CLIENTS = 8

Fields = dict[str, Any]


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


def tell(stage: Stage) -> Told:
    """Drop each checkpoint of the story, while clients ask."""
    say(f"{CLIENTS} clients ask from now on, {len(LONG)} of them for long answers, word by word")
    clients = Clients(stage.daemon, CLIENTS)
    chapters: list[tuple[Chapter, Fields]] = []
    with clients.asking():
        clients.warm_up()
        for chapter in STORY:
            say(f"dropping {chapter.label}: {chapter.what}")
            failed = len(clients.failures)
            stage.drop(chapter.number, chapter.damage)
            attempt = stage.outcome_of(chapter.label)
            say(f"  {ending(attempt, len(clients.failures) - failed, stage.still_ending)}")
            say(f"  {stage.ask()}")
            chapters.append((chapter, attempt))
    return Told(chapters, clients, stage.live_since)


def ending(attempt: Fields, failed: int, still: str = "") -> str:
    """How an attempt ended, in words, how many requests failed meanwhile, and who still ends."""
    if attempt["outcome"] == "live":
        held = attempt["pause_seconds"]
        waited = f"clients waited {duration(held)}" if held else "nobody waited"
        told = f"live: {waited}, {failed or 'none'} failed{f'; {still}' if still else ''}"
        return painted(told, "bad" if failed or held else "good")
    return painted(f"{attempt['outcome']}: {attempt['reason']}", "bad")


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
