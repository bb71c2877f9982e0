"""The command `hotreload`: one small file for each group of verbs.

Every start builds the parsers of all verbs, so a verb imports heavy modules only when it runs.
"""

import argparse
import io
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hotreload import __version__
from hotreload.cli import launch, serve
from hotreload.cli.client import ask, change, explain, log, look, ls, top
from hotreload.cli.exits import BROKEN_PIPE, INTERRUPTED, USAGE, exit_code
from hotreload.cli.ops import check, check_config, completion, doctor, install_unit
from hotreload.cli.trial import demo, diff, swap, tiny
from hotreload.errors import HotReloadError, did_you_mean

MODULES: tuple[Any, ...] = (
    serve,
    launch,
    doctor,
    install_unit,
    demo,
    tiny,
    check,
    check_config,
    look,
    log,
    ls,
    explain,
    top,
    change,
    ask,
    swap,
    diff,
    completion,
)
"""The modules of the verbs; each has `add(verbs)`, which adds parsers and sets their `run`."""

GROUPS = (
    ("run it", ("serve", "launch", "check-config", "doctor", "install-unit", "completion")),
    ("look", ("status", "top", "log", "ls", "history", "checksums", "events", "explain")),
    ("change", ("reload", "rollback", "pin", "unpin", "perturb")),
    ("try it", ("demo", "tiny", "check", "diff", "swap", "generate")),
)

INTRODUCTION = """\
Keeps a running sglang-jax engine's weights equal to the newest good checkpoint:
drop one into the watched folder and it goes live, or is refused with a reason."""

CLOSING = """\
The verbs that ask the daemon find it by --url, --socket, --config, $HOTRELOAD_URL,
$HOTRELOAD_SOCKET or the usual settings ($HOTRELOAD_CONFIG), else on
/run/hotreload/hotreload.sock.

exit codes: 0 ok, 1 refused or failed, 2 usage, 3 unreachable, 4 busy, 5 timed out,
            6 not ready yet (it boots), 69 no accelerator, 70 engine lost, 75 an address is taken,
            78 bad settings

`hotreload VERB --help` tells more, and `hotreload explain CODE` what a reason, an alert or an exit
code means."""

ParserOfVerb = Mapping[str, argparse.ArgumentParser]

_WITHOUT_A_VERB = ("-h", "--help", "--version")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code of the process."""
    _fill_closed_descriptors()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a folder's name may have bytes that are no text
            stream.reconfigure(errors="backslashreplace")
    parser = build_parser()
    args = _parse(parser, sys.argv[1:] if argv is None else argv)
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

    Otherwise a socket would get the free descriptor 2, and C++ would write its log into the socket.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs."""
    parser = argparse.ArgumentParser(
        prog="hotreload",
        usage="hotreload VERB …",
        description=INTRODUCTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"hotreload {__version__}")
    parser.set_defaults(parser=parser)  # `completion` writes its script from it
    verbs = parser.add_subparsers(prog="hotreload", metavar="VERB", help=argparse.SUPPRESS)
    for module in MODULES:
        module.add(verbs)
    parser.epilog = f"{_list_verbs(verbs)}\n\n{CLOSING}"
    return parser


def _list_verbs(verbs: Any) -> str:
    """Return the verbs in groups, which argparse cannot list."""
    about = {each.dest: each.help for each in verbs._choices_actions}
    return "\n\n".join(
        "\n".join([f"{title}:", *(f"  {name:<14}{about[name]}" for name in names)])
        for title, names in GROUPS
    )


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments of `hotreload`; invalid ones end the process with exit code 2."""
    verbs = _verbs_of(parser)
    if argv and argv[0] not in verbs and argv[0] not in _WITHOUT_A_VERB:
        parser.error(_without_a_verb(verbs, argv))
    args, unknown = parser.parse_known_args(argv)
    if "further" in args:
        args.further = unknown
    elif unknown:
        name = argv[0]
        verbs[name].error(_unknown(name, verbs[name], unknown))
    return args


def _verbs_of(parser: argparse.ArgumentParser) -> ParserOfVerb:
    """Return each verb's parser, by a private name of argparse."""
    actions = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    return {name: verb for action in actions for name, verb in action.choices.items()}


def _without_a_verb(verbs: ParserOfVerb, argv: Sequence[str]) -> str:
    first = argv[0]
    if first.endswith(".toml"):
        return f"{first}: write hotreload serve --config {shlex.quote(first)}"
    if not first.startswith("-"):
        hint = did_you_mean(first, verbs) or "; `hotreload --help` lists the verbs"
        return f"{first!r} is no verb{hint}"
    at = next((at for at, word in enumerate(argv) if word in verbs), None)
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
