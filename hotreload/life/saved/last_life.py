"""Reports an earlier life that a signal ended, and what it may have died of.

A start that dies while it reads compiled programs would die again each time: the next leaves them
out.
"""

import os
from contextlib import suppress
from pathlib import Path

from hotreload.core.ledger import Ledger
from hotreload.engine.compile_cache import JAX_VARIABLE, leave_out
from hotreload.events import LastLifeDied
from hotreload.json_fields import iso
from hotreload.life.saved.state_lock import DeadLife, LifeStage
from hotreload.life.start.start_engine import compile_cache_of
from hotreload.settings.sections import Settings

HOW_IT_ENDED = "ended"
"""The file in systemd's state folder that says how the last process of the service ended."""


def make_last_life_event(died: DeadLife, ledger: Ledger, settings: Settings) -> LastLifeDied:
    """Make the event of the earlier life; if it died at its start, leave its programs out."""
    live = ledger.generations[-1] if ledger.generations else None
    what = "with the machine" if died.with_machine else f"by {_signal_of(died)}"
    words = [f"the daemon before this one (pid {died.pid}) ended {what}"]
    if died.stage is LifeStage.STARTING:
        words.append("before its start was over")
    if live is not None:
        words.append(f"generation {live.number}, {live.revision}, was live last")
    words.append(f"its last sign of life was at {iso(died.seen)}")
    if died.stage is LifeStage.STARTING and not died.with_machine:
        words += _left_out(settings)
    return LastLifeDied("; ".join(words), died.with_machine)


def _signal_of(died: DeadLife) -> str:
    """Name the signal, where systemd wrote it down (`ExecStopPost=`)."""
    with suppress(OSError, ValueError):
        ended = Path(os.environ.get("STATE_DIRECTORY", "").partition(":")[0], HOW_IT_ENDED)
        _, signal, result = ended.read_text(errors="replace").split()
        if ended.stat().st_mtime >= died.seen:
            return f"SIG{signal} ({result})"
    return "a signal"


def _left_out(settings: Settings) -> list[str]:
    """Leave out the compiled programs that it may have died of, and say so."""
    if cache := compile_cache_of(settings):
        left = leave_out(cache)
        return [f"what it had compiled is left out, and lies in {left}"] if left else []
    place = os.environ.get(JAX_VARIABLE)
    todo = "if starts end like this again, remove what lies there"
    return [f"compiled programs are read from {place} ({JAX_VARIABLE}): {todo}"] if place else []
