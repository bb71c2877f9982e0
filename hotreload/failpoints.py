"""Named points where a test kills, hangs, fails or delays the daemon; off unless armed.

HOTRELOAD_FAILPOINTS='swapping=kill;staging=hang;probing=raise:OSError;reading=delay:2' arms a
daemon; `=kill@2` waits for the second time. Unarmed, a point costs one look into an empty dict.
"""

import asyncio
import builtins
import os
import signal
import threading
import time
from dataclasses import dataclass

VARIABLE = "HOTRELOAD_FAILPOINTS"

POINTS = {
    "fetching": "the source is asked for the files",
    "validating": "the files are about to be checked",
    "staging": "checked, and not yet loaded",
    "reading": "weights are about to be read, or copied of a twin, in a thread; also at a start",
    "staged": "loaded beside the live weights",
    "draining": "the gate is closed, requests may be inside; by overlap, if room is waited for",
    "swapping": "nobody is inside, the old weights are live; by overlap, before the flip",
    "swapped": "the new weights are live, and not yet probed",
    "probing": "the probe is about to ask, within its deadline",
    "comparing": "live and new weights are about to be asked the same, where they are compared",
    "rolling_back": "the probe was bad, the new weights are still live",
    "proven": "the answers are good, and the old weights still live",
    "flipped": "the engine answers by the new weights, the gate knows nothing",
    "committed": "good and live in memory, and the state file does not know",
    "saved": "the state file says how the attempt ended",
    "ended": "nobody is answered by the old weights, and they are there",
    "building": "the engine is about to be built, when the daemon starts",
    "warming": "about to compile for usual batches, by asking them or for each size beside answers",
    "resting": "the scheduler has nothing to do, which it sees once a second; in its thread",
}
"""Every point, in the order an attempt passes them; those from `ended` on are no part of one."""

START_ONLY = ("building", "warming")
"""The points that only a start of the daemon passes."""

OVERLAP_ONLY = ("comparing", "proven", "flipped", "ended")
"""The points that are passed by overlap alone, as `swapped` and `rolling_back` are never."""

ACTIONS = ("kill", "hang", "raise", "delay")


@dataclass(slots=True)
class _Armed:
    action: str
    argument: str
    passes_left: int
    """The number of times that the point is passed before the action comes."""


_armed: dict[str, _Armed] = {}


def arm(text: str) -> None:
    """Arm exactly the points that `text` names; ValueError says why it cannot be parsed."""
    points = dict(_parse(one.strip()) for one in text.split(";") if one.strip())
    _armed.clear()
    _armed.update(points)


def list_armed() -> dict[str, str]:
    """List the armed points, each with its action."""
    return {name: f"{each.action}:{each.argument}".strip(":") for name, each in _armed.items()}


async def reach(name: str) -> None:
    """Pass this point in a coroutine; a hang here ends when the coroutine is cancelled."""
    if (point := _armed.get(name)) is not None and _is_due(point):
        if point.action in ("hang", "delay"):
            await asyncio.sleep(_seconds(point))
        else:
            _act(point)


def reach_in_thread(name: str) -> None:
    """Pass this point in a thread; a hang here never ends."""
    if (point := _armed.get(name)) is not None and _is_due(point):
        if point.action == "hang":
            threading.Event().wait()
        elif point.action == "delay":
            time.sleep(_seconds(point))
        else:
            _act(point)


def _parse(one: str) -> tuple[str, _Armed]:
    name, _, what = one.partition("=")
    what, _, count = what.partition("@")
    action, _, argument = what.partition(":")
    if name not in POINTS:
        raise ValueError(f"{one!r}: no point is called {name!r}; there are {', '.join(POINTS)}")
    if action not in ACTIONS:
        raise ValueError(f"{one!r}: an action is one of {', '.join(ACTIONS)}")
    if not (count or "1").isdecimal() or int(count or "1") < 1:
        raise ValueError(f"{one!r}: after @ must stand a number, such as @2")
    point = _Armed(action, argument, int(count or "1") - 1)
    read = _error if action == "raise" else _seconds
    read(point)
    return name, point


def _is_due(point: _Armed) -> bool:
    point.passes_left -= 1
    return point.passes_left < 0


def _seconds(point: _Armed) -> float:
    return float(point.argument) if point.action == "delay" else float(10**8)


def _error(point: _Armed) -> Exception:
    kind = getattr(builtins, point.argument, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        raise ValueError(f"raise:{point.argument}: no built-in exception has that name")
    return kind("a failpoint of the tests")


def _act(point: _Armed) -> None:
    if point.action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise _error(point)
