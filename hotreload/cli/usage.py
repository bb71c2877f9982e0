"""What to say of a command line that makes no sense: what was meant, and how to write it."""

import argparse
import shlex
from collections.abc import Mapping, Sequence

from hotreload.errors import did_you_mean

Verbs = Mapping[str, argparse.ArgumentParser]

_WITHOUT_A_VERB = ("-h", "--help", "--version")


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse the words behind `hotreload`; words that make no sense end the process with 2."""
    verbs = _verbs_of(parser)
    if argv and argv[0] not in verbs and argv[0] not in _WITHOUT_A_VERB:
        parser.error(_without_a_verb(verbs, argv))
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        name = argv[0]
        verbs[name].error(_unknown(name, verbs[name], unknown))
    return args


def _verbs_of(parser: argparse.ArgumentParser) -> Verbs:
    """Each verb's parser; argparse has no public way to ask for them."""
    actions = (each for each in parser._actions if isinstance(each, argparse._SubParsersAction))
    return {name: verb for action in actions for name, verb in action.choices.items()}


def _without_a_verb(verbs: Verbs, argv: Sequence[str]) -> str:
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
    if option == "--config" and _takes_a_file(verb):
        return f"{option}: write the file alone: hotreload {name} FILE"
    if not first.startswith("-") and "--config" in options and first.endswith(".toml"):
        return f"{first}: write hotreload {name} --config {shlex.quote(first)}"
    near = did_you_mean(option, options) if first.startswith("-") else ""
    hint = near or f"; `hotreload {name} --help` tells what it takes"
    return f"{name} takes no {option if near else first!r}{hint}"


def _takes_a_file(verb: argparse.ArgumentParser) -> bool:
    return any(action.dest == "file" for action in verb._get_positional_actions())
