"""Compares what is told today with what was told when a golden file was written.

`pytest … --update-golden` writes the files anew; what differs is then a diff that somebody signs.
"""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = Path(__file__).parent / "files"
OPTION = "--update-golden"
TITLE = re.compile(r"^=== (.+) ===$\n", re.MULTILINE)


class Golden:
    """The golden files; each text that a test tells is held against the one of its name."""

    def __init__(self, tests: str, update: bool) -> None:
        """`tests` is the file or folder whose tests tell the text."""
        self.update = update
        self._tests = tests

    def __call__(self, name: str, text: str) -> None:
        """Fail with a diff unless the file says this."""
        path, text = FILES / name, f"{text.rstrip()}\n"
        if self.update:
            path.write_text(text)
            return
        before = path.read_text() if path.exists() else ""
        if before != text:
            self.differs(name, _diff(path, before, text))

    def section(self, name: str, title: str, text: str) -> None:
        """The same of one section of a file, whose other sections other tests tell."""
        before = parts(name)
        if self.update:
            self(name, sections({**before, title: text}))
        elif before.get(title) != text.rstrip():
            diff = _diff(FILES / name, before.get(title, ""), text.rstrip())
            self.differs(f"{name}, {title!r}", diff)

    def differs(self, what: str, how: str) -> None:
        """Fail, and say what to type if the difference is meant."""
        told = f"{what} is not what it was:\n{how}"
        command = f"python -m pytest {self._tests} {OPTION}"
        pytest.fail(f"{told}\nIf every line of this is meant: {command}", pytrace=False)


def sections(texts: Mapping[str, str]) -> str:
    """One text of several, each under its title."""
    return "\n".join(f"=== {title} ===\n{text.rstrip()}\n" for title, text in texts.items())


def parts(name: str) -> dict[str, str]:
    """The sections of a golden file, by title."""
    path = FILES / name
    _, *found = TITLE.split(path.read_text() if path.exists() else "")
    return {title: text.rstrip() for title, text in zip(found[::2], found[1::2], strict=True)}


def _diff(path: Path, before: str, now: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(), now.splitlines(), str(path.relative_to(ROOT)), "now", lineterm=""
    )
    return "\n".join(lines)
