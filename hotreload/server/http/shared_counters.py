"""Numbers that limits are about: each process has a part of its own, and all see the whole."""

import mmap
import os
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field


class SharedNumber:
    """One such number."""

    def __init__(self, cells: memoryview | None = None, at: int = 0) -> None:
        """`cells` has a cell for each process, and `at` is ours; without them nobody shares it."""
        self._cells = cells if cells is not None else memoryview(bytearray(8)).cast("q")
        self._at = at

    @property
    def own(self) -> int:
        """Our part."""
        return int(self._cells[self._at])

    def add(self, more: int) -> None:
        """Add to our part; what is given back is less than nothing."""
        self._cells[self._at] += more

    @property
    def total(self) -> int:
        """The parts of all."""
        return sum(self._cells)


@dataclass(frozen=True, slots=True)
class SharedNumbers:
    """The numbers that clients share, whichever process answers them."""

    running: SharedNumber = field(default_factory=SharedNumber)
    """Requests to the model."""
    body_bytes: SharedNumber = field(default_factory=SharedNumber)
    local: SharedNumber = field(default_factory=SharedNumber)
    """Connections on unix sockets."""
    remote: SharedNumber = field(default_factory=SharedNumber)
    """Connections over TCP."""
    adopted: SharedNumber = field(default_factory=SharedNumber)
    """Connections that another process had first, since the start."""

    @property
    def each(self) -> Iterable[SharedNumber]:
        """All of them."""
        return (self.running, self.body_bytes, self.local, self.remote, self.adopted)

    @property
    def connections(self) -> int:
        """Count the connections that this process has now."""
        return self.local.own + self.remote.own


COLUMNS = len(SharedNumbers.__dataclass_fields__)
CELL = 8


class NumbersInMemory:
    """The memory in which several processes keep their parts, by what each of them is called."""

    def __init__(self, descriptor: int, processes: int) -> None:
        self.descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        self._memory = mmap.mmap(descriptor, processes * COLUMNS * CELL)
        self._cells = memoryview(self._memory).cast("q")

    @classmethod
    def made(cls, processes: int) -> "NumbersInMemory":
        """Make such a memory for so many."""
        descriptor = os.memfd_create("hotreload-counts")
        os.ftruncate(descriptor, processes * COLUMNS * CELL)
        return cls(descriptor, processes)

    def of(self, process: int) -> SharedNumbers:
        """The numbers as this process has a part in them."""
        return SharedNumbers(*(SharedNumber(self._column(at), process) for at in range(COLUMNS)))

    def forget(self, process: int) -> None:
        """Have no part of a process count that has ended."""
        for count in self.of(process).each:
            count.add(-count.own)

    def _column(self, at: int) -> memoryview:
        cells: memoryview = self._cells[at::COLUMNS]
        return cells
