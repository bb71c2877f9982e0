"""Drives one daemon through faults that a seed chooses, with clients asking all the while."""

import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.histories.faults import KINDS, Kind
from tests.histories.record import Fault, Record
from tests.histories.world import World

CLIENTS = 4
SAY_EVERY = 30.0


def drive(folder: Path, seed: int, kinds: Iterable[Kind], *, clients: int = CLIENTS) -> Record:
    """Do these faults one after the other, and return what was seen until the ordered end."""
    record = Record(seed)
    world = World(folder, record, random.Random(seed))
    said = time.monotonic()
    with world.living(), world.asking.clients(clients, seed):
        for kind in kinds:
            _inject(world, kind)
            world.a_moment(0.6)
            if time.monotonic() - said > SAY_EVERY:
                said = time.monotonic()
                print(f"  {_progress(record)}", flush=True)
        _end_well(world)
    return record


def chosen(seed: int, kinds: Iterable[Kind] = KINDS) -> Iterator[Kind]:
    """Faults by their weights, for ever; the same for the same seed."""
    chance = random.Random(seed)
    all_kinds = list(kinds)
    weights = [kind.weight for kind in all_kinds]
    while True:
        yield chance.choices(all_kinds, weights)[0]


def for_minutes(kinds: Iterator[Kind], minutes: float) -> Iterator[Kind]:
    """As many of them as begin within that time."""
    end = time.monotonic() + minutes * 60
    for kind in kinds:
        if time.monotonic() > end:
            return
        yield kind


def _inject(world: World, kind: Kind) -> None:
    at = time.monotonic()
    published = len(world.record.publications)
    came_of = kind.act(world)
    revisions = tuple(p.revision for p in world.record.publications[published:])
    survived = world.serves_again()
    fault = Fault(kind.name, at, time.monotonic(), came_of, revisions, survived)
    world.record.faults.append(fault)
    assert survived, f"seed {world.record.seed}: after {fault} it does not serve"


def _end_well(world: World) -> None:
    """Whatever happened before: a new checkpoint goes live, and the daemon leaves in order."""
    if world.life.failpoints:
        world.stop()
        world.start()
    world.tell("unpin")
    last = world.publish()
    assert world.until_live(last, 60), f"seed {world.record.seed}: {world.status()}"
    world.asking.get("/history")
    world.asking.get("/metrics")
    world.asking.get("/admin/weights_checksum")
    world.stop()


def _progress(record: Record) -> str:
    minutes = (time.monotonic() - record.lives[0].started) / 60
    generations = sum(heard.fields["event"] == "generation.live" for heard in record.heard)
    return (
        f"{minutes:5.1f} min: {len(record.faults)} faults, {len(record.lives)} lives, "
        f"{generations} generations live, {len(record.requests)} requests"
    )
