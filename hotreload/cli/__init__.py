"""The command `hotreload`: one small file for each group of verbs.

A start imports the module of its own verb alone, so no verb waits for the imports of another.
"""

import argparse
import io
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

from hotreload import __version__
from hotreload.errors import HotReloadError, Misused, did_you_mean

MODULES: Mapping[str, Sequence[str]] = {
    "serve": ("serve",),
    "launch": ("launch",),
    "ops.check_config": ("check-config",),
    "ops.doctor": ("doctor",),
    "ops.install_unit": ("install-unit",),
    "ops.completion": ("completion",),
    "client.look": ("status", "log", "history", "checksums", "events", "ls"),
    "client.top": ("top",),
    "client.explain": ("explain",),
    "client.change": ("reload", "rollback", "pin", "unpin", "perturb"),
    "client.ask": ("generate",),
    "trial.demo": ("demo",),
    "trial.tiny": ("tiny",),
    "ops.check": ("check",),
    "trial.diff": ("diff",),
    "trial.swap": ("swap",),
}
"""The verbs of each module, which has `add(verbs)`: it adds their parsers and sets their `run`."""


def read_help(name: str) -> str:
    """Return what `--help` says of a verb, of the whole command, or of finding the daemon."""
    file = Path(__file__).with_name("help") / f"{name}.txt"
    return file.read_text(encoding="utf-8").removesuffix("\n")


INTRODUCTION, OVERVIEW = read_help("hotreload").split("\n\n", 1)
VERBS: Mapping[str, str] = dict(re.findall(r"(?m)^  ([a-z-]+) +(.+)$", OVERVIEW))
"""The line of each verb in the overview."""

FAILED, INTERRUPTED, BROKEN_PIPE = 1, 130, 141
"""Exit codes beside those of errors: a fault that a verb found, Ctrl-C, a closed pipe."""

_WITHOUT_A_VERB = ("-h", "--help", "--version")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code of the process."""
    _fill_closed_descriptors()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a folder's name may have bytes that are no text
            stream.reconfigure(errors="backslashreplace")
    argv = sys.argv[1:] if argv is None else argv
    parser = build_parser([name for name in argv[:1] if name in VERBS])
    args = _parse(parser, argv)
    if not hasattr(args, "run"):
        parser.print_help(sys.stderr)
        return Misused.exit_code
    try:
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except HotReloadError as error:
        print(f"hotreload: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing left to flush
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED


def _fill_closed_descriptors() -> None:
    """Open /dev/null in place of a closed stdin, stdout or stderr.

    Otherwise a socket would get the free descriptor 2, and C++ would write its log into the socket.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def build_parser(names: Iterable[str] = VERBS) -> argparse.ArgumentParser:
    """Return the parser of the verbs that are named, and of those beside them in their modules."""
    wanted = {*names}
    parser = argparse.ArgumentParser(
        prog="hotreload",
        usage="hotreload VERB …",
        description=INTRODUCTION,
        epilog=OVERVIEW,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hotreload {__version__}")
    verbs = parser.add_subparsers(prog="hotreload", metavar="VERB", help=argparse.SUPPRESS)
    for module, its in MODULES.items():
        if wanted.intersection(its):
            import_module(f"hotreload.cli.{module}").add(verbs)
    return parser


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of `hotreload`; invalid ones end the process with exit code 2."""
    if argv and argv[0] not in VERBS and argv[0] not in _WITHOUT_A_VERB:
        parser.error(_without_a_verb(argv))
    args, unknown = parser.parse_known_args(argv)
    if "further" in args:
        args.further = unknown
    elif unknown:
        verb = _verbs_of(parser)[argv[0]]
        verb.error(_unknown(argv[0], verb, unknown))
    return args


def _verbs_of(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Return each verb's parser, by a private name of argparse."""
    actions = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    return {name: verb for action in actions for name, verb in action.choices.items()}


def _without_a_verb(argv: Sequence[str]) -> str:
    first = argv[0]
    if first.endswith(".toml"):
        return f"{first}: write hotreload serve --config {shlex.quote(first)}"
    if not first.startswith("-"):
        hint = did_you_mean(first, VERBS) or "; `hotreload --help` lists the verbs"
        return f"{first!r} is no verb{hint}"
    at = next((at for at, word in enumerate(argv) if word in VERBS), None)
    if at is None:
        return f"{first}: the verb comes first; `hotreload --help` lists the verbs"
    return f"{first}: the verb comes first: hotreload {shlex.join([*argv[at:], *argv[:at]])}"


def _unknown(name: str, verb: argparse.ArgumentParser, unknown: Sequence[str]) -> str:
    first, options = unknown[0], verb._option_string_actions
    option = first.partition("=")[0]
    if not first.startswith("-") and "--config" in options and first.endswith(".toml"):
        return f"{first}: write hotreload {name} --config {shlex.quote(first)}"
    for place in (each for each in verb._actions if not each.option_strings):
        if option.removeprefix("--") == place.dest:
            return f"{option}: write it alone: hotreload {name} {place.metavar or place.dest}"
    near = did_you_mean(option, options) if first.startswith("-") else ""
    hint = near or f"; `hotreload {name} --help` tells what it takes"
    return f"{name} takes no {option if near else first!r}{hint}"
