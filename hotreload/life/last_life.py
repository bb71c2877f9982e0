"""Tells of a life before this one that was ended by a signal, and of what it may have died.

A start that dies while it reads compiled programs would do so for ever: the next leaves them out.
"""

import os

from hotreload.core.ledger import Ledger
from hotreload.engine.compile_cache import JAX_VARIABLE, leave_out
from hotreload.events import LastLifeDied
from hotreload.json_fields import iso
from hotreload.life.start_engine import compile_cache_of
from hotreload.life.state_lock import Died, LifeStage
from hotreload.settings.sections import Settings


def last_life(died: Died, ledger: Ledger, settings: Settings) -> LastLifeDied:
    """Say what became of it; leave out what it had compiled if it died over its start."""
    live = ledger.generations[-1] if ledger.generations else None
    what = "with the machine" if died.with_machine else "by a signal"
    said = [f"the daemon before this one (pid {died.pid}) ended {what}"]
    if died.stage is LifeStage.STARTING:
        said.append("before its start was over")
    if live is not None:
        said.append(f"generation {live.number}, {live.revision}, was live last")
    said.append(f"its last sign of life was at {iso(died.seen)}")
    if died.stage is LifeStage.STARTING and not died.with_machine:
        said += _left_out(settings)
    return LastLifeDied("; ".join(said), died.with_machine)


def _left_out(settings: Settings) -> list[str]:
    """Say what becomes of the programs that it may have died of."""
    if cache := compile_cache_of(settings):
        left = leave_out(cache)
        return [f"what it had compiled is left out, and lies in {left}"] if left else []
    place = os.environ.get(JAX_VARIABLE)
    todo = "if starts end like this again, remove what lies there"
    return [f"compiled programs are read from {place} ({JAX_VARIABLE}): {todo}"] if place else []
