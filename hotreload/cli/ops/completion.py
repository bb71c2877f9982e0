"""`hotreload completion`: prints a script by which a shell completes the verbs and their options.

shtab writes it from the parsers each time: it has the verbs of this version.
"""

import argparse
import re
from typing import Any

import shtab

from hotreload.cli import build_parser
from hotreload.cli.args import add_verb

PLACES = {
    "bash": ("~/.local/share/bash-completion/completions", "hotreload"),
    "zsh": ("~/.zfunc", "_hotreload"),
    "fish": ("~/.config/fish/completions", "hotreload.fish"),
}
"""The folder in which each shell looks, and the script's name there."""
SHELLS = tuple(PLACES)
WANTED = {
    "bash": "bash finds it with its package bash-completion",
    "zsh": "zsh finds it with fpath=(~/.zfunc $fpath) in ~/.zshrc, before compinit",
}
"""The further command for each shell that needs one to find the script."""


def _install_commands(shell: str) -> str:
    """Return the commands that install a shell's script, each as a comment."""
    folder, name = PLACES[shell]
    lines = [f"mkdir -p {folder}", f"hotreload completion {shell} >{folder}/{name}"]
    wanted = [f"# {WANTED[shell]}"] if shell in WANTED else []
    return "\n".join(f"#   {line}" for line in (*lines, *wanted))


FILE_METAVARS = {"FILE", "DIR", "DIR|REPO", "PATH", "PATH|REVISION"}
"""The metavars of arguments that are a file or a folder."""
REMARKS = re.compile(r"(?m)^# AUTOMATICALLY GENERATED.*\n(?:# .*\n)*")
"""shtab's own remarks at the beginning, which name other folders than ours."""


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "completion", run)
    parser.add_argument("shell", choices=SHELLS, help="which shell it is for")


def run(args: argparse.Namespace) -> int:
    """Print the script that completes the verbs."""
    print(script(build_parser(), args.shell))
    return 0


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script for a shell; the parser is changed, and of no other use later."""
    _mark_files(parser)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            action.help = "what to do"  # shtab would leave out a suppressed argument
            about = {each.dest: each.help for each in action._choices_actions}
            for name, verb in action.choices.items():
                verb.description = about[name]  # the first line only; --help has all of it
                _mark_files(verb)
    remarks = f"# Written by hotreload and shtab. To install it:\n{_install_commands(shell)}\n"
    return REMARKS.sub(lambda _: remarks, str(shtab.complete(parser, shell=shell)), count=1)


def _mark_files(parser: argparse.ArgumentParser) -> None:
    """Mark the arguments that are a file or a folder, as shtab expects."""
    for action in parser._actions:
        if action.metavar in FILE_METAVARS:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
