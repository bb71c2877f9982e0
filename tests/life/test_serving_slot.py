"""What the server and a scrape get of the engines, before the boot is over and after it."""

from typing import Any

import pytest

from hotreload.core.way_in.entrance import Entrance
from hotreload.errors import NotServing
from hotreload.events import Events
from hotreload.life.running_engine import RunningEngine
from hotreload.life.serving_slot import ServingSlot
from hotreload.picture.picture import ReplicaFigures
from hotreload.types import (
    Generation,
    Lease,
    Revision,
)


def entrance(engines: int) -> Entrance[RunningEngine]:
    return Entrance(Events().publish, replicas=engines)


def test_what_is_asked_before_the_boot_is_over_is_told_so() -> None:
    with pytest.raises(NotServing, match="starting") as told:
        ServingSlot(entrance(1)).operator()
    assert (told.value.code, told.value.retry_after) == ("booting", 2)


def test_a_scrape_before_the_boot_is_over_reads_plain_numbers() -> None:
    slot = ServingSlot(entrance(1))
    assert slot.read(previous_is_on_device=True) == [ReplicaFigures(answering=[])]
    assert slot.entrance.list_answering() == []
    assert slot.is_turning(0.0)


async def test_a_scrape_reads_who_is_at_each_gate() -> None:
    two = entrance(2)
    engine: Any = object()
    for gate in two.gates:
        gate.open(Lease(Generation(1, Revision("one"), "fp", 0.0), engine))
    async with two.admit(), two.gates[1].admit(), two.gates[1].admit():
        inside = [each.inside for each in ServingSlot(two).read(previous_is_on_device=True)]
        assert inside == [gate.inside for gate in two.gates]
        assert sum(inside) == 3
