"""`hotreload tiny`: write a tiny checkpoint that says a sentence."""

import argparse
from pathlib import Path
from typing import Any

from hotreload.cli.exits import Misused

EXPLAINED = """\
Write a tiny checkpoint that says a sentence.

Its greedy answer to any prompt is TEXT. It is built by hand, not trained, in under a second, and
the real engine serves it on a CPU. TEXT uses words of a list, each once, and ends in a number
from 0 to 99.

examples:
  hotreload tiny ./model
  hotreload tiny ./checkpoints/step-17 --say "served by step 17" --shards 2
  hotreload tiny ./checkpoints/step-18 --damage nan

A new folder appears at once and whole, as a trainer should write it, too."""

DAMAGES = (
    "truncated, missing-tensor, extra-tensor, wrong-shape, wrong-dtype, nan, inf, zeros, "
    "gibberish, bad-index, traversal, duplicate-key"
)
ARCHS = "qwen3, qwen2, llama"


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "tiny",
        help="write a tiny checkpoint that says a sentence",
        description=EXPLAINED,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("directory", metavar="DIR", type=Path, help="the folder to write")
    parser.add_argument("--say", metavar="TEXT", help="what it says ('hello from step 1')")
    parser.add_argument("--arch", default="qwen3", metavar="ARCH", help=f"one of: {ARCHS}")
    parser.add_argument("--shards", type=int, default=1, metavar="N", help="how many files (1)")
    parser.add_argument("--damage", metavar="KIND", help=f"spoil it: {DAMAGES}")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Write the checkpoint, and say what it is and what to do with it."""
    from hotreload.tiny import SAY_DEFAULT, write_tiny

    say = args.say or SAY_DEFAULT
    try:
        write_tiny(args.directory, say, args.arch, args.shards, args.damage)
    except ValueError as error:
        raise Misused(str(error)) from None
    except OSError as error:
        raise Misused(f"{args.directory}: cannot be written: {error.strerror}") from error
    print(_told(args, say))
    return 0


def _told(args: argparse.Namespace, say: str) -> str:
    size = sum(file.stat().st_size for file in args.directory.iterdir())
    spoiled = f", spoiled: {args.damage}" if args.damage else ""
    return (
        f"{args.directory}: {args.arch} in {size / 2**20:.1f} MiB that says {say!r}{spoiled}\n"
        f"  what the checks think of it:  hotreload check {args.directory}\n"
        "  serve it:                     hotreload serve "
        f"--set engine.model={args.directory} --set source.path=CHECKPOINTS\n"
        "  make it live:                 write it into CHECKPOINTS, the folder that `serve` watches"
    )
