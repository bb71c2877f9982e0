"""`hotreload tiny`: writes a tiny checkpoint that says a sentence."""

import argparse
import os
import shlex
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hotreload import figures
from hotreload.cli.args import add_verb
from hotreload.errors import Misused
from hotreload.facts.names import LONGEST_SOCKET_PATH

UNSOUND_NAMES = (
    "truncated, missing-tensor, extra-tensor, wrong-shape, wrong-dtype, nan, inf, zeros, "
    "gibberish, bad-index, traversal, duplicate-key"
)


def _fill(names: str) -> str:
    return textwrap.fill(
        names, 96, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False
    )


_KINDS = f"damages, each of which the checks or the probe refuse:\n{_fill(UNSOUND_NAMES)}"
ARCH_NAMES = "qwen3, qwen2, llama"
DEFAULT_ARCH = "qwen3"
QUICK_SETTINGS = {
    "engine.warm_batches": "0",
    "engine.args": "{context_length=256, max_total_tokens=4096, max_running_requests=8, "
    "chunked_prefill_size=256}",
}
"""Settings for quick answers: on a CPU each step is padded to the largest size allowed."""
NEXT_SAYING = "served by step 2"


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "tiny", run, epilog=_KINDS)
    parser.add_argument("directory", metavar="DIR", type=Path, help="the folder to write")
    parser.add_argument("--say", metavar="TEXT", help="what it says ('hello from step 1')")
    parser.add_argument(
        "--arch", default=DEFAULT_ARCH, metavar="ARCH", help=f"one of: {ARCH_NAMES}"
    )
    parser.add_argument("--shards", type=int, default=1, metavar="N", help="how many files (1)")
    parser.add_argument(
        "--trained", type=int, metavar="STEPS", help="train it for so many steps, say no TEXT"
    )
    parser.add_argument("--damage", metavar="KIND", help="spoil it: the kinds stand below")
    parser.add_argument(
        "--force", action="store_true", help="replace the tiny checkpoint that DIR holds"
    )


def run(args: argparse.Namespace) -> int:
    """Write the checkpoint, and print its description and the next commands."""
    # Before numpy is imported: for small matrices several threads are slower than one.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from hotreload.tiny import SAY_DEFAULT, write_tiny

    if args.say and args.trained is not None:
        raise Misused("--say is what one built by hand says: leave it out with --trained")
    say, spoiled = args.say or SAY_DEFAULT, args.damage
    wish = {"steps": args.trained, "force": args.force}
    try:
        write_tiny(args.directory, say, args.arch, args.shards, spoiled, **wish)
    except ValueError as error:
        raise Misused(str(error)) from None
    except OSError as error:
        raise Misused(f"{args.directory}: cannot be written: {error.strerror}") from error
    print(_describe(args, say))
    return 0


def _describe(args: argparse.Namespace, say: str) -> str:
    directory = args.directory
    size = sum(file.stat().st_size for file in directory.iterdir() if file.is_file())
    spoiled = f", spoiled: {args.damage}" if args.damage else ""
    does = f"says {say!r}" if args.trained is None else f"was trained for {args.trained} steps"
    lines = (
        f"{directory}: {args.arch} in {figures.size(size)} that {does}{spoiled}",
        f"  check it:           hotreload check {shlex.quote(_near(directory, directory))}",
        *(_to_serve(directory, args) if not args.damage else ()),
        "  drop it:            write it into the folder that a daemon watches",
    )
    return "\n".join(lines)


def _to_serve(directory: Path, args: argparse.Namespace) -> Iterator[str]:
    """Yield the commands that serve the checkpoint, send a request, and replace the weights.

    The daemon's own files lie beside the checkpoint, where no daemon takes them for a checkpoint.
    """
    whole = directory.resolve()
    state = whole.with_name(f".{whole.name}.served")
    model, socket = _near(directory, whole), _near(directory, state / "socket")
    if len(os.fsencode(state / "socket")) > LONGEST_SOCKET_PATH:
        socket = f"{tempfile.gettempdir()}/hotreload-{os.getuid()}.sock"
    settings = {
        "engine.model": model,
        "source.path": model,
        "server.socket": socket,
        "state.directory": _near(directory, state),
        "metrics.address": "",
        **QUICK_SETTINGS,
    }
    sets = (shlex.join(("--set", f"{name}={value}")) for name, value in settings.items())
    words = ("Who serves?" if args.trained is None else "king", "--socket", socket)
    yield " \\\n      ".join(("  serve it:           hotreload serve", *sets))
    yield f"  ask it:             {shlex.join(('hotreload', 'generate', *words))}"
    following = ["--say", NEXT_SAYING]
    if args.trained is not None:
        following = ["--trained", f"{args.trained + 4}"]
    arch = ["--arch", args.arch] if args.arch != DEFAULT_ARCH else []
    made = ("hotreload", "tiny", model, "--force", *arch, *following)
    yield f"  make the next live: {shlex.join(made)}"


def _near(directory: Path, path: Path) -> str:
    """Return a path as the folder was given, absolute or relative, but never like a number."""
    if directory.is_absolute():
        return str(path)
    return f"./{os.path.relpath(path)}"
