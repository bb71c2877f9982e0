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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hotreload.cli.args import add_verb
from hotreload.cli.trial.demo_stage import Stage, free_port
from hotreload.cli.trial.demo_story import play, print_closing

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


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "demo", run, EXPLAINED)
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
