"""How times, revisions and tables are written for people. Knows no daemon."""

import os
import pwd
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

Fields = dict[str, Any]
Now = datetime

COLOURS = {"good": 32, "bad": 31, "wait": 33, "dim": 2, "bold": 1}


def painted(text: str, colour: str | None) -> str:
    """Colour a text, where somebody looks at a terminal that may show colours."""
    if colour is None or os.environ.get("NO_COLOR") or not sys.stdout.isatty():
        return text
    return f"\033[{COLOURS[colour]}m{text}\033[0m"


def plain(value: Any) -> str:
    """Show what came from elsewhere so that it cannot drive the terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in str(value))


def named(fields: Mapping[str, Any], revision: str = "revision", label: str = "label") -> str:
    """Name a revision as people know it."""
    identity = plain(fields.get(revision) or "nothing")[:12]
    known_as = fields.get(label)
    return f"{plain(known_as)} ({identity})" if known_as else identity


def who(by: Mapping[str, Any]) -> str:
    """Name who asked: their user's name on this machine, and their process."""
    uid = by["uid"]
    try:
        name = pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        name = f"uid {uid}"
    return f"{plain(name)} (pid {by['pid']})"


def outcome_word(attempt: Mapping[str, Any]) -> str:
    """How an attempt ended; one that an operator asked for to go back is told as what it is."""
    verb = (attempt.get("by") or {}).get("verb")
    is_rollback = attempt["outcome"] == "live" and verb == "rollback"
    word = "rolled back" if is_rollback else plain(attempt["outcome"])
    return f"{word}, dry run" if attempt.get("dry_run") else word


def asked_by(by: Mapping[str, Any] | None) -> str:
    """Name who asked for a change, and by which verb; nobody did where the source wished it."""
    return f"{plain(by['verb'])}, {who(by)}" if by else "source"


def moment(stamp: Any, now: Now) -> str:
    """Write a moment in local time, and how long ago it was."""
    return f"{local(stamp)} ({ago(stamp, now)})"


def local(stamp: Any) -> str:
    """Write a moment in local time."""
    return f"{datetime.fromisoformat(str(stamp)).astimezone():%Y-%m-%d %H:%M:%S}"


def ago(stamp: Any, now: Now) -> str:
    """Write how long ago a moment was."""
    seconds = (now - datetime.fromisoformat(str(stamp))).total_seconds()
    if seconds < 1:
        return "just now"
    for size, name in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if seconds >= size:
            return f"{int(seconds // size)} {name} ago"
    raise AssertionError(seconds)


def now() -> Now:
    """The present, comparable with the daemon's moments."""
    return datetime.now(UTC)


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Write names and values in two columns; lines of a value stand under each other."""
    width = max(len(name) for name, _ in rows) + 2
    indent = "\n" + " " * width
    return "\n".join(f"{name:<{width}}{value.replace('\n', indent)}" for name, value in rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write rows in columns as wide as need be; each line is cut to the terminal."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]
    room = _room()
    return "\n".join(line if len(line) <= room else line[: room - 1] + "…" for line in lines)


def _room() -> int:
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):  # no terminal: nothing is cut
        return sys.maxsize
