"""Counters that several processes share: each process changes its part, and reads the total."""

import mmap
import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field


class SharedCounter:
    """One counter: this process's part, and the total of all."""

    def __init__(self, cells: memoryview | None = None, at: int = 0) -> None:
        """`cells` has a cell for each process, and `at` is ours; not shared without them."""
        self._cells = cells if cells is not None else memoryview(bytearray(8)).cast("q")
        self._at = at

    @property
    def own(self) -> int:
        """The part of this process."""
        return int(self._cells[self._at])

    def add(self, more: int) -> None:
        """Add to this process's part; a negative number subtracts."""
        self._cells[self._at] += more

    @property
    def total(self) -> int:
        """The sum over all processes."""
        return sum(self._cells)


@dataclass(frozen=True, slots=True)
class SharedCounters:
    """The counters behind the limits on requests, bytes and connections."""

    running: SharedCounter = field(default_factory=SharedCounter)
    """Requests to the model."""
    body_bytes: SharedCounter = field(default_factory=SharedCounter)
    local: SharedCounter = field(default_factory=SharedCounter)
    """Connections on unix sockets."""
    remote: SharedCounter = field(default_factory=SharedCounter)
    """Connections over TCP."""
    adopted: SharedCounter = field(default_factory=SharedCounter)
    """Connections taken over from another process, since the start."""

    @property
    def each(self) -> Iterable[SharedCounter]:
        """All counters."""
        return (self.running, self.body_bytes, self.local, self.remote, self.adopted)

    @property
    def connections(self) -> int:
        """The number of connections that this process has now."""
        return self.local.own + self.remote.own

    def reset_own(self) -> None:
        """Set this process's part of each counter to 0, because the process has ended."""
        for counter in self.each:
            counter.add(-counter.own)


COLUMNS = len(SharedCounters.__dataclass_fields__)
CELL = 8


class CounterMemory:
    """The shared memory in which each process, by its index, keeps its part of each counter."""

    def __init__(self, descriptor: int, processes: int) -> None:
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        self._memory = mmap.mmap(descriptor, processes * COLUMNS * CELL)
        self._cells = memoryview(self._memory).cast("q")

    @classmethod
    def create(cls, processes: int) -> "CounterMemory":
        """Create the memory for this many processes."""
        descriptor = os.memfd_create("hotreload-counts")
        os.ftruncate(descriptor, processes * COLUMNS * CELL)
        return cls(descriptor, processes)

    def of(self, process: int) -> SharedCounters:
        """Return the counters as the process of this index sees them."""
        return SharedCounters(*(SharedCounter(self._column(at), process) for at in range(COLUMNS)))

    def _column(self, at: int) -> memoryview:
        cells: memoryview = self._cells[at::COLUMNS]
        return cells
