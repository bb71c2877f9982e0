"""What the pages of docs/ say about each code: their tables and sections are the one home of it.

On which page a table stands does not matter, nor under which heading.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hotreload.cli.shipped import shipped

TABLES = (
    "outcomes",
    "rejections",
    "put off",
    "passed over",
    "troubles",
    "clients",
    "exit codes",
)
"""The marked tables whose rows explain a code."""
TABLE = re.compile(r"<!-- ([\w ]+) -->\n(.*?)\n<!-- /\1 -->", re.DOTALL)
ALERT = re.compile(r"^#+ Alert (\w+)\n+(.*?)\s*(?=^#|\Z)", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LINK = re.compile(r"\[((?:`[^`]+`|[^\]`])+)\]\([^)\s]*\)")
"""What is shown of it may be code, and code may have brackets."""
CODES = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class RunbookEntry:
    """What a page says about some codes."""

    codes: tuple[str, ...]
    about: str
    """The heading that it stands below."""
    page: str
    says: tuple[tuple[str, str], ...]
    """In words, each under its name."""


@cache
def entries() -> Sequence[RunbookEntry]:
    """Read every page."""
    return [entry for path in _pages() for entry in _entries_of(path.name, path.read_text())]


def _pages() -> Iterator[Path]:
    return iter(sorted(shipped("docs").glob("*.md")))


def _entries_of(page: str, text: str) -> Iterator[RunbookEntry]:
    for found in TABLE.finditer(text):
        name, table = found.groups()
        if name in TABLES:
            about = HEADING.findall(text, 0, found.start())[-1]
            head, _, *rows = map(_cells, table.splitlines())
            yield from (_row(page, about, head, row) for row in rows)
    for found in ALERT.finditer(text):
        name, words = found.groups()
        yield RunbookEntry((name,), "Alerts", page, tuple(_points(words)))


def _cells(line: str) -> list[str]:
    return [_plain(cell.strip()) for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _row(page: str, about: str, head: Sequence[str], row: Sequence[str]) -> RunbookEntry:
    """An entry whose codes stand in the column that has them, else in the first one."""
    at = head.index("code") if "code" in head else 0
    codes = tuple(CODES.findall(row[at])) or (row[at],)
    says = list(zip(head, row, strict=True))
    return RunbookEntry(codes, about, page, (*says[:at], *says[at + 1 :]))


def _points(words: str) -> Iterator[tuple[str, str]]:
    """The points of an alert's section, each of which begins with its name."""
    for name, said in re.findall(r"^- \*\*(\w+):\*\* (.+)$", words, re.MULTILINE):
        yield name.lower(), _plain(said)


def _plain(text: str) -> str:
    """Take a page's marks out, but those of code."""
    return LINK.sub(r"\1", text).replace("**", "").replace("\\|", "|")
