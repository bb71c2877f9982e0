"""Compares what is told today with what was told when a golden file was written.

`pytest … --update-golden` writes the files anew; what differs is then a diff that somebody signs.
"""

import re
from collections.abc import Mapping
from difflib import unified_diff
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = Path(__file__).parent / "files"
OPTION = "--update-golden"
TITLE = re.compile(r"^=== (.+) ===$\n", re.MULTILINE)


class Golden:
    """The golden files; each text that a test tells is held against the one of its name."""

    def __init__(self, tests: str, update: bool, folder: Path = FILES) -> None:
        """`tests` is the file whose tests tell the text."""
        self.update = update
        self._tests = tests
        self._folder = folder

    def __call__(self, name: str, text: str) -> None:
        """Fail with a diff unless the file says this; or write it anew."""
        path, text = self._folder / name, f"{text.rstrip()}\n"
        if self.update:
            path.write_text(text)
        else:
            self._compare(name, path.read_text() if path.exists() else "", text)

    def section(self, name: str, title: str, text: str) -> None:
        """The same of one section of a file, whose other sections other tests tell."""
        before = self.sections(name)
        if self.update:
            self(name, sections({**before, title: text}))
        else:
            self._compare(f"{name}, {title!r}", before.get(title, ""), text.rstrip())

    def sections(self, name: str) -> dict[str, str]:
        """The sections of a golden file, by title."""
        path = self._folder / name
        _, *found = TITLE.split(path.read_text() if path.exists() else "")
        return {title: text.rstrip() for title, text in zip(found[::2], found[1::2], strict=True)}

    def _compare(self, what: str, before: str, now: str) -> None:
        if before != now:
            lines = before.splitlines(), now.splitlines()
            self.differs(what, "\n".join(unified_diff(*lines, "golden", "now", lineterm="")))

    def differs(self, what: str, how: str) -> None:
        """Fail, and say what to type if the difference is meant."""
        command = f"python -m pytest {self._tests} {OPTION}"
        words = f"{what} is not what it was:\n{how}\nIf every line of this is meant: {command}"
        pytest.fail(words, pytrace=False)


def sections(texts: Mapping[str, str]) -> str:
    """One text of several, each under its title."""
    return "\n".join(f"=== {title} ===\n{text.rstrip()}\n" for title, text in texts.items())
