"""`hotreload explain`: prints the meaning of a code and its remedy, from the pages of docs/.

It reads the tables and sections of the pages. Tables that are made of the code (reasons, alerts)
are mended there, and written into the page by `tests.docs.tables`. A table may stand on any page,
under any heading.
"""

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from hotreload.cli.args import add_verb
from hotreload.cli.client.show import BELOW, pairs, paragraph
from hotreload.errors import Misused, did_you_mean, show_value
from hotreload.facts.files import find_shipped

TABLES = (
    "outcomes",
    "rejections",
    "put off",
    "passed over",
    "troubles",
    "clients",
    "exit codes",
)
"""The marks of the tables whose rows explain a code."""
TABLE = r"(?s)<!-- ([\w ]+) -->\n(.*?)\n<!-- /\1 -->"
ALERT = r"(?sm)^#+ Alert (\w+)\n+(.*?)\s*(?=^#|\Z)"
HEADING = r"(?m)^#+ (.+)$"
LINK = r"\[((?:`[^`]+`|[^\]`])+)\]\([^)\s]*\)"
"""A link; its visible words may be code with brackets."""
CODE_MARK = r"`([^`]+)`"


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "explain", run)
    parser.add_argument("code", nargs="?", metavar="CODE", help="which (all are listed)")


def run(args: argparse.Namespace) -> int:
    """Print the runbook's entries for a code, or all codes."""
    print(_all() if args.code is None else _explain(args.code))
    return 0


def _all() -> str:
    """Return every code, under the heading of its table."""
    under: dict[str, dict[str, None]] = {}
    for entry in entries():
        under.setdefault(entry.about, {}).update(dict.fromkeys(entry.codes))
    return "\n\n".join(
        f"{about}:\n{BELOW}{paragraph(', '.join(codes), BELOW)}" for about, codes in under.items()
    )


def _explain(code: str) -> str:
    """Return all entries for a code; a code of several meanings has several entries."""
    known = {each: each for entry in entries() for each in entry.codes}
    found = [entry for entry in entries() if _same(code) in map(_same, entry.codes)]
    if not found:
        meant = did_you_mean(code, known)
        raise Misused(
            f"no runbook knows {show_value(code)}{meant}\n`hotreload explain` lists all codes"
        )
    exactly_first = sorted(found, key=lambda entry: code not in entry.codes)
    return "\n\n".join(map(_text, exactly_first))


def _same(code: str) -> str:
    """Return the same spelling for every way to type a code."""
    return code.lower().replace("_", "").replace("-", "").replace(" ", "")


def _text(entry: "RunbookEntry") -> str:
    first = paragraph(f"{', '.join(entry.codes)}: {entry.about} (docs/{entry.page})")
    return f"{first}\n{pairs(entry.says)}"


@dataclass(frozen=True, slots=True)
class RunbookEntry:
    """An entry of a page for some codes."""

    codes: tuple[str, ...]
    about: str
    """The heading above the entry."""
    page: str
    says: tuple[tuple[str, str], ...]
    """The parts of the entry, by name."""


@cache
def entries() -> Sequence[RunbookEntry]:
    """Yield the entries of every page."""
    pages = sorted(find_shipped("docs").glob("*.md"))
    return [entry for path in pages for entry in _entries_of(path.name, path.read_text())]


def _entries_of(page: str, text: str) -> Iterator[RunbookEntry]:
    for found in re.finditer(TABLE, text):
        name, table = found.groups()
        if name in TABLES:
            about = re.findall(HEADING, text[: found.start()])[-1]
            head, _, *rows = map(_cells, table.splitlines())
            yield from (_row(page, about, head, row) for row in rows)
    for found in re.finditer(ALERT, text):
        name, words = found.groups()
        yield RunbookEntry((name,), "Alerts", page, tuple(_points(words)))


def _cells(line: str) -> list[str]:
    return [_plain(cell.strip()) for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _row(page: str, about: str, head: Sequence[str], row: Sequence[str]) -> RunbookEntry:
    """Return a row's entry; its codes stand in the column that has codes, else in the first."""
    at = head.index("code") if "code" in head else 0
    codes = tuple(re.findall(CODE_MARK, row[at])) or (row[at],)
    says = list(zip(head, row, strict=True))
    return RunbookEntry(codes, about, page, (*says[:at], *says[at + 1 :]))


def _points(words: str) -> Iterator[tuple[str, str]]:
    """Yield the points of an alert's section, each of which begins with its name."""
    for name, said in re.findall(r"^- \*\*(\w+):\*\* (.+)$", words, re.MULTILINE):
        yield name.lower(), _plain(said)


def _plain(text: str) -> str:
    """Return the text without Markdown's marks, except those of code."""
    return re.sub(LINK, r"\1", text).replace("**", "").replace("\\|", "|")
