"""Figures as they are written for people, and durations as people write them.

One spelling for command, page and messages.

The page counts on by itself, so `hotreload/server/page/words.js` has a `duration`, too, which
writes alike, digit by digit; a test compares the two.
"""

import re
from decimal import ROUND_HALF_UP, Context, Decimal

SIZE_UNITS = ("B", "kB", "MB", "GB", "TB")
"""Each a thousand of the one before."""
DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
HOW_TO_WRITE = "write seconds, or '250ms', '30s', '5m', '1h'"

_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+) ?(ms|s|m|h)?", re.ASCII)
LEAST_PERCENT, MOST_PERCENT = 0.001, 1e6


def duration(seconds: float) -> str:
    """Write seconds with the digits that matter."""
    if seconds < 0.9995:
        return f"{round_half_up(seconds * 1000)} ms"
    if seconds < 99.95:
        return f"{round_half_up(seconds, 1)} s"
    return (
        f"{round_half_up(seconds / 60)} min"
        if seconds < 5970
        else f"{round_half_up(seconds / 3600, 1)} h"
    )


def size(count: float) -> str:
    """Write a number of bytes, in the units of the docs: 1 MB is 10^6 bytes."""
    power = 0
    while count >= 999.5 and power < len(SIZE_UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{round_half_up(count, 1 if power and count < 99.5 else 0)} {SIZE_UNITS[power]}"


def percent(share: float) -> str:
    """Write a share of something: all its digits before the point, or two that matter."""
    number = share * 100
    if 0 < number < LEAST_PERCENT:
        return "less than 0.001 %"
    if number >= MOST_PERCENT:
        return "over 1000000 %"
    if number >= 9.95:
        return f"{round_half_up(number)} %"
    two = Context(prec=2, rounding=ROUND_HALF_UP).create_decimal(Decimal(number))
    return f"{two:f}".rstrip("0").rstrip(".") + " %" if number else "0 %"


def round_half_up(number: float, digits: int = 0) -> str:
    """Write a number with so many digits; a half goes up, as JavaScript's `toFixed` does it."""
    return f"{Decimal(number).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)}"


def seconds_in(text: str) -> float | None:
    """The seconds that a text stands for; None when it is no duration."""
    match = _DURATION.fullmatch(text.strip())
    return float(match[1]) * DURATION_UNITS[match[2] or "s"] if match else None
