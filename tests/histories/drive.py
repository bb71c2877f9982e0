"""Drives one daemon through faults that a seed chooses, with clients asking all the while.

Then everything that was seen is judged; a run that breaks off keeps its record and its table.
"""

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from hotreload.types import Mode
from tests.histories.check import violations
from tests.histories.faults import KINDS, Kind
from tests.histories.record import Fault, Record
from tests.histories.table import table
from tests.histories.world import World
from tests.integration.running import PROMPTS, request_for

CLIENTS = 4
SAY_EVERY = 30.0


def judged(
    folder: Path,
    seed: int,
    kinds: Iterable[Kind],
    show: Callable[[str], object] = print,
    *,
    modes: Sequence[Mode] = tuple(Mode),
    sets: Sequence[str] = (),
) -> Record:
    """Do these faults one after the other, save and show what was seen; nothing in it is wrong.

    The daemon's lives take the modes in turn, and have these settings.
    """
    record = Record(seed)
    saved = folder / "record.jsonl"
    try:
        _drive(World(folder, record, random.Random(seed), *sets, modes=modes), kinds)
    finally:
        record.save(saved)
        show(f"{table(record)}\nthe record: {saved}")
    wrong = violations(record)
    assert not wrong, "\n".join((f"seed {seed}, the record: {saved}", *wrong))
    return record


def _drive(world: World, kinds: Iterable[Kind]) -> None:
    """Until the ordered end."""
    said = time.monotonic()
    with world.living(), world.asking.clients(CLIENTS, world.record.seed):
        for kind in kinds:
            _inject(world, kind)
            world.a_moment(0.6)
            if time.monotonic() - said > SAY_EVERY:
                said = time.monotonic()
                print(f"  {_progress(world.record)}", flush=True)
        _end_well(world)


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
    record, at = world.record, time.monotonic()
    published = len(record.publications)
    came_of = "broke off"
    try:
        came_of = kind.act(world)
    finally:
        revisions = tuple(each.revision for each in record.publications[published:])
        record.faults.append(Fault(kind.name, at, time.monotonic(), came_of, revisions))
    assert world.serves_again(), f"seed {record.seed}: after {record.faults[-1]} it does not serve"


def _end_well(world: World) -> None:
    """Whatever happened before: a new checkpoint goes live, and the daemon leaves in order."""
    if world.life.failpoints:
        world.stop()
        world.start()
    world.tell("unpin")
    last = world.publish()
    assert world.until_live(last, 60), f"seed {world.record.seed}: {world.status()}"
    assert world.until_alone(60), f"seed {world.record.seed}: {world.status()}"
    # The clients may all be between two requests of a conversation now, for longer than this takes.
    world.asking.ask("POST", "/generate", request_for(PROMPTS[0]))
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
