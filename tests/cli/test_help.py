"""`--help` of every verb teaches: what it does, examples, exit codes."""

import argparse
import re
import shlex

import pytest

from hotreload.cli import MODULES, VERBS, build_parser, read_help
from tests.source import PACKAGE

NAMES = list(VERBS)


def verbs() -> dict[str, argparse.ArgumentParser]:
    actions = build_parser()._actions
    found = next(each for each in actions if isinstance(each, argparse._SubParsersAction))
    return dict(found.choices)


@pytest.mark.parametrize("name", NAMES)
def test_help_says_how_it_exits_and_fits_a_terminal(name: str) -> None:
    text = verbs()[name].format_help()
    assert re.search(r"[Ee]xit", text)
    assert max(map(len, text.splitlines())) <= 100


def test_each_text_is_that_of_a_verb_and_begins_as_the_overview_has_it() -> None:
    files = (PACKAGE / "cli" / "help").iterdir()
    assert {file.stem for file in files} == {*VERBS, "hotreload", "daemon"}
    for name in (name for module, names in MODULES.items() for name in names if "client" in module):
        said = " ".join(read_help(name).split())
        assert name == "explain" or said.lower().startswith(f"{VERBS[name].lower()}.")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["top", "--interval", "x"], "'x' is no duration: write seconds, or '250ms'"),
        (["top", "--interval", "0"], "must be from 0.05 to 3600 seconds, not 0"),
        (["reload", "--timeout", "x"], "'x' is no duration"),
        (["reload", "--timeout", "-1"], "'-1' is no duration"),
        (["reload", "--timeout", "nan"], "'nan' is no duration"),
        (["reload", "--timeout", "0s"], "must be more than nothing, not 0s"),
    ],
)
def test_what_is_no_time_is_told_in_the_users_words(
    command: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(command)
    assert words in capsys.readouterr().err


def test_the_daemon_is_said_to_follow_a_hub_too() -> None:
    text = verbs()["serve"].format_help()
    assert "revision on a hub" in text
    assert "source.kind=huggingface" in text


@pytest.mark.parametrize("name", NAMES)
def test_every_example_is_one_the_parser_takes(name: str) -> None:
    text = verbs()[name].format_help().replace("\\\n", " ")
    lines = re.findall(r"^ +(?:\w+ +)?(?:eval \"\$\(|source <\()?hotreload (.*)$", text, re.M)
    assert lines, f"{name} has no example"
    for line in lines:
        command = re.split(r"  +\S| \|| && |; | >|\)", line)[0].replace(">", " ")
        build_parser().parse_args(shlex.split(command))
