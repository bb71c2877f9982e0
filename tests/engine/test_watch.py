"""What counts as a hang: a part that keeps something, and not one that rests or is not let run."""

import asyncio
import itertools
from types import SimpleNamespace

import pytest

from hotreload.engine.upstream.thread import watch
from hotreload.engine.upstream.thread.watch import EngineWatch, Part
from hotreload.errors import EngineLost

PATIENCE = 0.05


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "WATCH_SECONDS", 0.001)


def well() -> None:
    return None


async def looked_at(*parts: Part) -> None:
    """Look until it is lost."""
    looking = EngineWatch()
    await asyncio.gather(looking.look(well, parts), looking.until_lost())


async def test_of_several_parts_the_one_that_hangs_is_named() -> None:
    turns = itertools.count()
    busy = Part("busy", lambda: (True, next(turns)), PATIENCE)
    idle = Part("idle", lambda: (False, 7), PATIENCE)
    patient = Part("patient", lambda: (True, 7), 60)
    with pytest.raises(EngineLost, match="stuck"):
        await looked_at(busy, idle, patient, Part("stuck", lambda: (True, 7), PATIENCE))


async def test_while_we_ourselves_were_stopped_nobody_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP, a suspended machine, a starved loop: each look is a day after the one before."""
    days = map(float, itertools.count(0, 86400))
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=days.__next__))
    monkeypatch.setattr(watch, "LONGEST_LOOK", 1.0)
    looks = 0

    def progress() -> tuple[bool, int]:
        nonlocal looks
        looks += 1
        return True, 7

    with pytest.raises(EngineLost):
        await looked_at(Part("stuck", progress, 100.0))
    assert looks > 100
