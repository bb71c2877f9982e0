"""Durations as people write them: seconds, or text with a unit."""

import re

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
HOW_TO_WRITE = "write seconds, or '250ms', '30s', '5m', '1h'"

_TEXT = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?(ms|s|m|h)?", re.ASCII)


def seconds_in(text: str) -> float | None:
    """The seconds that a text stands for; None when it is no duration."""
    match = _TEXT.fullmatch(text.strip())
    return float(match[1]) * UNITS[match[2] or "s"] if match else None
