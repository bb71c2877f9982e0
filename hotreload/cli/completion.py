"""`hotreload completion`: a script that teaches a shell the verbs and their options.

It is written anew from the parsers each time, so it knows what this version knows.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

EXPLAINED = """\
Prints a script that completes verbs, options and what they take.

to install it:
  bash   hotreload completion bash >~/.local/share/bash-completion/completions/hotreload
  zsh    hotreload completion zsh >~/.zfunc/_hotreload      (a folder of your $fpath)
  fish   hotreload completion fish >~/.config/fish/completions/hotreload.fish
or for this shell alone:
  bash   eval "$(hotreload completion bash)"
  zsh    source <(hotreload completion zsh)      (after compinit)
  fish   hotreload completion fish | source

After an upgrade print the script again. Exits 0."""

FILES = {"FILE", "DIR", "DIR|REPO", "PATH", "PATH|REVISION"}
"""The metavars of arguments that take a file or folder."""


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "completion",
        help="print a script that completes in bash, zsh or fish",
        description=EXPLAINED,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="which shell it is for")
    parser.set_defaults(run=partial(run, verbs))


def run(verbs: Any, args: argparse.Namespace) -> int:
    """Print the script that completes these verbs."""
    print(SCRIPTS[args.shell](list(verbs_of(verbs.parser))))
    return 0


@dataclass(frozen=True, slots=True)
class Argument:
    """An option, or an operand, which has no flags."""

    flags: tuple[str, ...]
    about: str
    takes: bool
    words: tuple[str, ...] = ()
    is_file: bool = False
    repeats: bool = False


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb and all that may follow it."""

    name: str
    about: str
    arguments: tuple[Argument, ...]

    @property
    def options(self) -> Iterator[Argument]:
        """The arguments that begin with a dash."""
        return (argument for argument in self.arguments if argument.flags)

    @property
    def operands(self) -> Iterator[Argument]:
        """The arguments that do not begin with a dash."""
        return (argument for argument in self.arguments if not argument.flags)


def verbs_of(parser: argparse.ArgumentParser) -> Iterator[Verb]:
    """Read all verbs off the parser; argparse has no public way to ask it."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            about = {each.dest: each.help or "" for each in action._choices_actions}
            for name, verb in action.choices.items():
                yield Verb(name, about[name], tuple(map(_argument, verb._actions)))


def _argument(action: argparse.Action) -> Argument:
    return Argument(
        flags=tuple(action.option_strings),
        about=(action.help or "").replace("%%", "%"),
        takes=action.nargs != 0,
        words=tuple(map(str, action.choices or ())),
        is_file=action.metavar in FILES,
        repeats=isinstance(action, argparse._AppendAction),
    )


# --- bash --------------------------------------------------------------------------------

BASH = """\
# bash completion for hotreload, made by `hotreload completion bash`
_hotreload() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb='' word words=''
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        if [[ $word != -* ]]; then verb=$word; break; fi
    done
    case "$verb $prev" in
%(values)s
    *)  case "$verb $cur" in
%(after)s
        esac ;;
    esac
    if [[ $words == '<file>' ]]; then
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    else
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
    fi
}
complete -F _hotreload hotreload"""


def bash(verbs: Sequence[Verb]) -> str:
    """Write the script for bash."""
    names = " ".join(verb.name for verb in verbs)
    after = ["        ' '-*) words='--help --version' ;;", f"        ' '*) words='{names}' ;;"]
    for verb in verbs:
        flags = " ".join(flag for option in verb.options for flag in option.flags)
        after.append(f"        '{verb.name} '-*) words='{flags}' ;;")
        offered = " ".join(_bash_words(each) for each in verb.operands)
        after.append(f"        '{verb.name} '*) words='{offered}' ;;")
    return BASH % {"values": "\n".join(_bash_values(verbs)), "after": "\n".join(after)}


def _bash_values(verbs: Sequence[Verb]) -> Iterator[str]:
    """What comes after an option that takes something, one line for all that take the same."""
    options: dict[str, list[str]] = {}
    for verb in verbs:
        for option in verb.options:
            if option.takes:
                after = (f"'{verb.name} {flag}'" for flag in option.flags)
                options.setdefault(_bash_words(option), []).extend(after)
    return (f"    {'|'.join(after)}) words='{words}' ;;" for words, after in options.items())


def _bash_words(argument: Argument) -> str:
    return "<file>" if argument.is_file else " ".join(argument.words)


# --- zsh ---------------------------------------------------------------------------------

ZSH = """\
#compdef hotreload
# zsh completion for hotreload, made by `hotreload completion zsh`
_hotreload() {
    local -a verbs
    verbs=(
%(verbs)s
    )
    if (( CURRENT == 2 )); then
        _describe verb verbs
        return
    fi
    local verb=$words[2]
    shift words
    (( CURRENT-- ))
    case $verb in
%(cases)s
    esac
}
if [[ $funcstack[1] == _hotreload ]]; then _hotreload "$@"; else compdef _hotreload hotreload; fi"""


def zsh(verbs: Sequence[Verb]) -> str:
    """Write the script for zsh."""
    named = (f"        {_quoted(f'{verb.name}:{_escaped(verb.about)}')}" for verb in verbs)
    cases = (f"    {verb.name}) _arguments {' '.join(_zsh_specs(verb))} ;;" for verb in verbs)
    return ZSH % {"verbs": "\n".join(named), "cases": "\n".join(cases)}


def _zsh_specs(verb: Verb) -> Iterator[str]:
    for argument in verb.options:
        for flag in argument.flags:
            star = "*" if argument.repeats else ""
            value = _zsh_value(argument) if argument.takes else ""
            yield _quoted(f"{star}{flag}[{_escaped(argument.about)}]{value}")
    for operand in verb.operands:
        yield _quoted(_zsh_value(operand))


def _zsh_value(argument: Argument) -> str:
    then = "_files" if argument.is_file else f"({' '.join(argument.words)})"
    return f":{_escaped(argument.about)}:{then if then != '()' else ' '}"


def _escaped(text: str) -> str:
    for char in "\\[]:":
        text = text.replace(char, f"\\{char}")
    return text


# --- fish --------------------------------------------------------------------------------


def fish(verbs: Sequence[Verb]) -> str:
    """Write the script for fish."""
    return "\n".join(_fish_lines(verbs))


def _fish_lines(verbs: Sequence[Verb]) -> Iterator[str]:
    yield "# fish completion for hotreload, made by `hotreload completion fish`"
    yield "complete -c hotreload -f"
    for verb in verbs:
        about = _quoted_for_fish(verb.about)
        yield f"complete -c hotreload -n __fish_use_subcommand -a {verb.name} -d {about}"
    for verb in verbs:
        when = f"complete -c hotreload -n '__fish_seen_subcommand_from {verb.name}'"
        for argument in verb.arguments:
            yield f"{when}{_fish_argument(argument)} -d {_quoted_for_fish(argument.about)}"


def _fish_argument(argument: Argument) -> str:
    flags = "".join(
        f" -l {flag[2:]}" if flag.startswith("--") else f" -s {flag[1:]}" for flag in argument.flags
    )
    words = f" -a {_quoted_for_fish(' '.join(argument.words))}" if argument.words else ""
    files = " -F" if argument.is_file else ""
    value = (" -r" if argument.is_file else " -x") if argument.flags and argument.takes else ""
    return flags + value + words + files


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _quoted_for_fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


SCRIPTS: Mapping[str, Callable[[Sequence[Verb]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
