"""Writes times, users and tables for people, in the columns of a terminal. Knows no daemon."""

import os
import pwd
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import zip_longest
from typing import Any

from hotreload.picture.words import plain

Now = datetime
Row = Sequence[str]

GAP, BELOW = "  ", "    "
LEAST_WORDS = 30
"""The fewest columns of a column of words."""
LEAST_COLUMN = 6

STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
"""A moment in a daemon's words."""
USER = re.compile(r"\buid (\d+)(?= \(pid \d)")
"""A user in a daemon's words."""
COLOURS = {"good": 32, "bad": 31, "wait": 33, "dim": 2, "bold": 1}
TIED = "\N{NO-BREAK SPACE}"
"""A space at which no line ends, as within a command that a user will copy."""
COLOUR = re.compile(r"\033\[\d*m")
AFTER_A_PART = re.compile(r"(?<=[/_.,:=@-])")
"""The places to break a name that is too long for its column."""


def paint(text: str, colour: str | None) -> str:
    """Return a text in colour, if it goes to a terminal that may show colours."""
    if colour is None or os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return text
    return f"\033[{COLOURS[colour]}m{text}\033[0m"


def for_here(words: str, now: Now, spelled: Callable[[str, Now], str] | None = None) -> str:
    """Return a daemon's words with local times and users' names, without control characters."""
    as_moment = spelled or moment
    here = STAMP.sub(lambda found: as_moment(found[0], now), words)
    here = USER.sub(lambda found: user_name(int(found[1])), here)
    return "\n".join(plain(line) for line in here.split("\n"))


def user_name(uid: int) -> str:
    """Return a user's name on this machine."""
    try:
        return plain(pwd.getpwuid(uid).pw_name)
    except (KeyError, OverflowError):
        return f"uid {uid}"


def moment(stamp: Any, now: Now) -> str:
    """Return a moment in local time, and its age."""
    return f"{local(stamp)} ({ago(stamp, now)})"


def local(stamp: Any) -> str:
    """Return a moment in local time."""
    return f"{datetime.fromisoformat(str(stamp)).astimezone():%Y-%m-%d %H:%M:%S}"


def ago(stamp: Any, now: Now) -> str:
    """Return the age of a moment."""
    seconds = (now - datetime.fromisoformat(str(stamp))).total_seconds()
    if seconds < 1:
        return "just now"
    for size, name in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{int(seconds // size)} {name} ago"
    raise AssertionError(seconds)


def now() -> Now:
    """Return the present moment, to compare with the daemon's."""
    return datetime.now(UTC)


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Return names and values in two columns; lines of a value stand under each other."""
    width = max(len(name) for name, _ in rows) + 2
    indent = "\n" + " " * width
    return "\n".join(
        f"{name:<{width}}{indent.join(_lines(value, room() - width))}" for name, value in rows
    )


def paragraph(text: str, indent: str = "") -> str:
    """Return a text folded to the terminal, with all lines but the first indented."""
    return f"\n{indent}".join(_lines(text, room() - len(indent)))


def _lines(text: str, width: int) -> list[str]:
    return [part for line in text.split("\n") for part in fold(line, max(LEAST_WORDS, width))]


def table(head: Row, rows: Sequence[Row]) -> str:
    """Return rows in columns as wide as their cells.

    On a narrower terminal the last column, which has the words, is folded beside the others. If
    too little room is left there, it stands below each row.
    """
    widths = [max(columns(row[place]) for row in (head, *rows)) for place in range(len(head))]
    if _count_columns(widths) <= room():
        return "\n".join(_row(row, widths) for row in (head, *rows))
    *others, _ = widths
    left = room() - _count_columns([*others, 0])
    if left >= LEAST_WORDS:
        return "\n".join(_row(row, [*others, left]) for row in (head, *rows))
    others = _narrow_columns(others)
    return "\n".join(_with_words_below(row, others) for row in (head, *rows))


def fits(head: Row, rows: Sequence[Row]) -> bool:
    """Return whether the words of such a table fit beside the other columns."""
    widths = [max(columns(row[place]) for row in (head, *rows)) for place in range(len(head) - 1)]
    return _count_columns(widths) + len(GAP) + LEAST_WORDS <= room()


def _count_columns(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _narrow_columns(widths: Sequence[int]) -> list[int]:
    """Return narrower columns: the widest shrinks until all fit."""
    narrower = list(widths)
    while _count_columns(narrower) > room() and max(narrower) > LEAST_COLUMN:
        narrower[narrower.index(max(narrower))] -= 1
    return narrower


def _with_words_below(row: Row, widths: Sequence[int]) -> str:
    *cells, words = row
    below = [] if words == "-" else fold(words, room() - len(BELOW))
    return "\n".join([_row(cells, widths), *(BELOW + line for line in below)])


def _row(row: Row, widths: Sequence[int]) -> str:
    """Return one row's lines; a cell that is wider than its column has several."""
    cells = [fold(cell, width, breaking=True) for cell, width in zip(row, widths, strict=True)]
    lines = zip_longest(*cells, fillvalue="")
    return "\n".join(
        GAP.join(
            cell + " " * (width - columns(cell)) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def room() -> int:
    """Return the columns of the results' terminal; without a terminal there is no limit."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns or sys.maxsize
    except (OSError, ValueError):
        return sys.maxsize


def columns(text: str) -> int:
    """Return the columns that a text takes: some characters take two; some, as colours, none."""
    return sum(_width(char) for char in COLOUR.sub("", text))


def cut(text: str, room: int) -> str:
    """Return the text, cut with an ellipsis if it is too long, at the end of a word if possible."""
    if columns(text) <= room:
        return text
    kept, used = "", 0
    for char in text:
        used += _width(char)
        if used >= room:
            break
        kept += char
    words, space, _ = kept.rpartition(" ")
    if space and len(words) >= len(kept) // 2 and not text[len(kept)].isspace():
        kept = words
    return kept.rstrip() + "…" if room > 0 else ""


def fold(text: str, room: int, *, breaking: bool = False) -> list[str]:
    """Return the text in lines of at most so many columns, without breaking a word.

    A longer word has a line of its own, and can be copied whole; with `breaking` it is broken.
    """
    lines = _fill_lines(text.split(" "), " ", room)
    for parts_of in (AFTER_A_PART.split, list) if breaking else ():
        lines = [
            piece
            for line in lines
            for piece in (
                [line] if columns(line) <= room else _fill_lines(parts_of(line), "", room)
            )
        ]
    return [line.replace(TIED, " ") for line in lines]


def _fill_lines(parts: Iterable[str], between: str, room: int) -> list[str]:
    """Return the parts joined to lines, each as long as possible."""
    first, *others = parts
    lines = [first]
    for part in others:
        longer = f"{lines[-1]}{between}{part}"
        if columns(longer) <= room:
            lines[-1] = longer
        else:
            lines.append(part)
    return [line.rstrip() for line in lines]


def pad(text: str, room: int) -> str:
    """Return the text, cut or padded to exactly this many columns."""
    fitting = cut(text, room)
    return fitting + " " * (room - columns(fitting))


def _width(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) == "Cf":
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
