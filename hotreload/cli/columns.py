"""How many columns of a terminal a text takes, and how it is cut to fit."""

import unicodedata


def columns(text: str) -> int:
    """Count the columns that printable text takes: some characters take two, some none."""
    return sum(_width(char) for char in text)


def cut(text: str, room: int) -> str:
    """Return the text, or as much of it as fits with an ellipsis at its end."""
    if columns(text) <= room:
        return text
    kept, used = "", 0
    for char in text:
        used += _width(char)
        if used >= room:
            break
        kept += char
    return kept + "…" if room > 0 else ""


def padded(text: str, room: int) -> str:
    """Return the text cut or filled up to exactly this many columns."""
    fitting = cut(text, room)
    return fitting + " " * (room - columns(fitting))


def _width(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) == "Cf":
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
