"""Many reloads in one daemon, and what the process held after each."""

import shutil
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from random import Random

from hotreload.types import Mode
from tests.histories.record import Record
from tests.histories.world import World

SETTINGS = ("source.settle=0", "metrics.per_leaf=false")


@dataclass(frozen=True, slots=True)
class Held:
    """What the process holds: kilobytes of its own memory, counts, and bytes of weights."""

    memory: float
    descriptors: float
    threads: float
    weights: float

    def __str__(self) -> str:
        return (
            f"{self.memory / 1024:.1f} MiB, {self.descriptors:g} descriptors, "
            f"{self.threads:g} threads, {self.weights / 2**20:.1f} MiB of weights"
        )


def reloads(folder: Path, count: int, mode: Mode = Mode.OVERLAP) -> Iterator[Held]:
    """Publish one checkpoint after the other; what is held once each is live."""
    world = World(folder, Record(), Random(0), *SETTINGS, modes=(mode,))
    with world.living():
        for _ in range(count):
            old = world.live_folder()
            published = world.publish()
            assert world.until_live(published), world.status()
            if old is not None:
                shutil.rmtree(old)
            yield _held(world)
            world.record.requests.clear()
            world.record.heard.clear()
        world.stop()
    assert world.life.exit_code == 0


def _held(world: World) -> Held:
    proc = Path(f"/proc/{world.process.child.pid}")
    lines = (line.split() for line in (proc / "status").read_text().splitlines())
    sizes = {name: float(rest[0]) for name, *rest in lines if name in ("RssAnon:", "RssShmem:")}
    metrics = world.asking.get("/metrics")
    weights = sum(value for name, value in metrics.items() if "weights_bytes" in name)
    descriptors, threads = (len(list((proc / each).iterdir())) for each in ("fd", "task"))
    return Held(sum(sizes.values()), descriptors, threads, weights)


def typical(held: Sequence[Held]) -> Held:
    """The median of each."""
    columns = zip(*map(astuple, held), strict=True)
    return Held(*(statistics.median(column) for column in columns))


TOLERATED = {"descriptors": 3.0, "threads": 6.0, "weights": 0.0}
"""A look at the folder may be under way; the loop's pool of threads fills one by one."""


def grown(first: Held, last: Held, *, memory: float) -> list[str]:
    """What the process holds more of than before, in words; `memory` is in sets of weights."""
    one_set = first.weights / 2 / 1024
    limits = {"memory": memory * one_set, **TOLERATED}
    more = {name: getattr(last, name) - getattr(first, name) for name in limits}
    return [f"{name}: {more[name]:g} more" for name, limit in limits.items() if more[name] > limit]
