"""The command `hotreload`: one small file for each group of verbs.

Every start builds the parsers of all verbs, so a verb imports heavy modules only when it runs.
"""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from hotreload import __version__
from hotreload.cli import (
    ask,
    change,
    check,
    check_config,
    completion,
    demo,
    doctor,
    explain,
    install_unit,
    look,
    ls,
    serve,
    swap,
    tiny,
    top,
    usage,
)
from hotreload.cli.exits import BROKEN_PIPE, INTERRUPTED, USAGE, exit_code
from hotreload.errors import HotReloadError

MODULES: tuple[Any, ...] = (
    serve,
    doctor,
    install_unit,
    demo,
    tiny,
    check,
    check_config,
    look,
    ls,
    explain,
    top,
    change,
    ask,
    swap,
    completion,
)
"""Each has `add(verbs)`, which adds its verbs to the subparsers and sets `run` for each."""

GROUPS = (
    ("run it", ("serve", "check-config", "doctor", "install-unit", "completion")),
    ("look", ("status", "top", "ls", "history", "checksums", "events", "explain")),
    ("change", ("reload", "rollback", "pin", "unpin", "perturb")),
    ("try it", ("demo", "tiny", "check", "swap", "generate")),
)

INTRODUCTION = """\
Keeps a running sglang-jax engine's weights equal to the newest good checkpoint:
drop one into the watched folder and it goes live, or is refused with a reason."""

CLOSING = """\
The verbs that ask the daemon find its socket by --socket, --config, $HOTRELOAD_SOCKET or the usual
settings ($HOTRELOAD_CONFIG), else they take /run/hotreload/hotreload.sock.

exit codes: 0 ok, 1 refused or failed, 2 usage, 3 unreachable, 4 busy, 5 timed out,
            6 not ready yet (it boots), 69 no accelerator, 70 engine lost, 78 bad settings

`hotreload VERB --help` tells more, and `hotreload explain CODE` what a reason, an alert or an exit
code means."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code of the process."""
    _fill_closed_descriptors()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a folder's name may hold bytes that are not text
            stream.reconfigure(errors="backslashreplace")
    parser = build_parser()
    args = usage.parsed(parser, sys.argv[1:] if argv is None else argv)
    if not hasattr(args, "run"):
        parser.print_help(sys.stderr)
        return USAGE
    try:
        code = int(args.run(args))
        sys.stdout.flush()
        return code
    except HotReloadError as error:
        print(f"hotreload: {error}", file=sys.stderr)
        return exit_code(error)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing left to flush
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED


def _fill_closed_descriptors() -> None:
    """Open /dev/null in place of a closed stdin, stdout or stderr.

    Otherwise a socket would take the free number, and C++ writes its log to number 2.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all verbs."""
    parser = argparse.ArgumentParser(
        prog="hotreload",
        usage="hotreload VERB …",
        description=INTRODUCTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hotreload {__version__}")
    verbs = _Verbs(parser)
    for module in MODULES:
        module.add(verbs)
    parser.epilog = f"{verbs.listed()}\n\n{CLOSING}"
    return parser


class _Verbs:
    """Subparsers whose help lists the verbs in groups, which argparse cannot."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser
        self._subparsers = parser.add_subparsers(
            prog="hotreload", metavar="VERB", help=argparse.SUPPRESS
        )
        self._lines: dict[str, str] = {}

    def add_parser(self, name: str, *, help: str, **kwargs: Any) -> Any:
        self._lines[name] = help
        return self._subparsers.add_parser(name, help=help, **kwargs)

    def listed(self) -> str:
        blocks = []
        for title, names in GROUPS:
            known = (name for name in names if name in self._lines)
            lines = (f"  {name:<14}{self._lines[name]}" for name in known)
            blocks.append("\n".join([f"{title}:", *lines]))
        return "\n\n".join(blocks)
