"""`--help` of every verb teaches: what it does, examples, exit codes."""

import argparse
import re
import shlex

import pytest

from hotreload.cli import GROUPS, build_parser

NAMES = [name for _, names in GROUPS for name in names]


def verbs() -> dict[str, argparse.ArgumentParser]:
    actions = build_parser()._actions
    found = next(each for each in actions if isinstance(each, argparse._SubParsersAction))
    return dict(found.choices)


@pytest.mark.parametrize("name", NAMES)
def test_help_says_how_it_exits_and_fits_a_terminal(name: str) -> None:
    text = verbs()[name].format_help()
    assert re.search(r"[Ee]xit", text)
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_one_the_parser_takes(name: str) -> None:
    text = verbs()[name].format_help().replace("\\\n", " ")
    lines = re.findall(r"^ +(?:\w+ +)?(?:eval \"\$\(|source <\()?hotreload (.*)$", text, re.M)
    assert lines, f"{name} has no example"
    for line in lines:
        command = re.split(r"  +\S| \|| && |; | >|\)", line)[0].replace(">", " ")
        build_parser().parse_args(shlex.split(command))
