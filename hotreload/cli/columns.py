"""How many columns of a terminal a text takes, and how it is cut or folded to fit."""

import re
import unicodedata
from collections.abc import Iterable

TIED = "\N{NO-BREAK SPACE}"
"""Stands for a space at which no line ends, as within a command that somebody will copy."""
COLOUR = re.compile(r"\033\[\d*m")
AFTER_A_PART = re.compile(r"(?<=[/_.,:=@-])")
"""Where a name that is too long for its column may be broken."""


def columns(text: str) -> int:
    """Count the columns that a text takes: some characters take two, some none, as colours do."""
    return sum(_width(char) for char in COLOUR.sub("", text))


def cut(text: str, room: int) -> str:
    """Return the text, or as much of it as fits with an ellipsis, after a word if one is near."""
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


def folded(text: str, room: int, *, breaking: bool = False) -> list[str]:
    """Return the text in lines of at most so many columns, none of which ends within a word.

    A word that is longer keeps a line of its own, which can be copied whole; `breaking` breaks it.
    """
    lines = _filled(text.split(" "), " ", room)
    for parts_of in (AFTER_A_PART.split, list) if breaking else ():
        lines = [
            piece
            for line in lines
            for piece in ([line] if columns(line) <= room else _filled(parts_of(line), "", room))
        ]
    return [line.replace(TIED, " ") for line in lines]


def _filled(parts: Iterable[str], between: str, room: int) -> list[str]:
    """Join the parts to lines, each as long as there is room for."""
    first, *others = parts
    lines = [first]
    for part in others:
        longer = f"{lines[-1]}{between}{part}"
        if columns(longer) <= room:
            lines[-1] = longer
        else:
            lines.append(part)
    return [line.rstrip() for line in lines]


def padded(text: str, room: int) -> str:
    """Return the text cut or filled up to exactly this many columns."""
    fitting = cut(text, room)
    return fitting + " " * (room - columns(fitting))


def _width(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) == "Cf":
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
