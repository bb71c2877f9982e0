"""The limits on connections, headers and bodies, and the counters behind them.

uvicorn itself limits neither the size of a body nor the time it takes to arrive.
"""

import asyncio
import logging
import mmap
import os
import resource
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotreload.server.http.problems import Refused
from hotreload.server_limits import Limits

log = logging.getLogger("hotreload.server")

FREE_BYTES = 64 * 2**10
"""Bytes of each body that are not counted, so that small requests pass beside large ones.

A connection may hold as many before the server reads the request."""
VALUE_BYTES = 48
"""Bytes that one JSON value takes in memory, roughly; a parsed list of numbers takes many times the
bytes of its text."""


# --- counters that several processes share: each changes its part, and reads the total ------------


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
    def connections(self) -> int:
        """The number of connections that this process has now."""
        return self.local.own + self.remote.own

    def reset_own(self) -> None:
        """Set this process's part of each counter to 0, because the process has ended."""
        for counter in (self.running, self.body_bytes, self.local, self.remote, self.adopted):
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
        columns = [self._cells[at::COLUMNS] for at in range(COLUMNS)]
        return SharedCounters(*(SharedCounter(column, process) for column in columns))


# --- connections ----------------------------------------------------------------------------------


class SlotHolder(Protocol):
    """A connection, as the connection limit sees it."""

    @property
    def is_closable(self) -> bool:
        """True if the connection is idle and all its answers are written."""

    def shutdown(self) -> None:
        """Close the connection."""


class ConnectionSlots:
    """The slots for connections on one kind of socket, unix or TCP.

    Any process of the machine can connect over TCP. The limit keeps enough descriptors free for
    loading checkpoints and saving the state.
    """

    def __init__(
        self, most: int, count: SharedCounter, make_room_in_other: Callable[[], bool]
    ) -> None:
        """`count` is of the connections of all processes that answer on such sockets."""
        _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)  # the soft limit may be raised
        is_bound = descriptors != resource.RLIM_INFINITY
        self._most = min(most, descriptors // 4) if is_bound else most
        self._connections: dict[SlotHolder, None] = {}
        """The connections of this process, the oldest first."""
        self._count = count
        self._make_room_in_other = make_room_in_other
        self._has_warned = False

    def take_slot(self, newcomer: SlotHolder) -> bool:
        """Take a slot for a new connection, closing the oldest idle one if none is free.

        False when every connection is busy. The last free descriptor counts as taken: the rest of
        the process needs it.
        """
        is_full = self._count.total >= self._most or not self._is_a_descriptor_left()
        if is_full and not self.make_room():
            return False
        self.add(newcomer)
        return True

    def add(self, newcomer: SlotHolder) -> None:
        """Take a slot for a connection that another process had accepted."""
        self._connections[newcomer] = None
        self._count.add(1)

    def make_room(self) -> bool:
        """Close the oldest idle connection, here or in the other process; False if none is idle."""
        spare = next((each for each in self._connections if each.is_closable), None)
        if spare is None:
            return self._make_room_in_other()
        self.free_slot(spare)
        spare.shutdown()
        return True

    def _is_a_descriptor_left(self) -> bool:
        """Try to open a descriptor; log once when none is left, until one is free again."""
        try:
            os.close(os.eventfd(0))
        except OSError as error:
            if not self._has_warned:
                log.warning("server.no_descriptor_left", extra={"error": error.strerror})
            self._has_warned = True
            return False
        self._has_warned = False
        return True

    def free_slot(self, connection: SlotHolder) -> None:
        """Free the connection's slot, unless `make_room` has freed it already."""
        if connection in self._connections:
            del self._connections[connection]
            self._count.add(-1)


# --- headers and bodies ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bodies:
    """Counts the bytes that the bodies of all requests under way take together.

    A parsed body lives until its request ends, and its bytes are counted until then.
    """

    limits: Limits
    held: SharedCounter = field(default_factory=SharedCounter)
    """Counts the bytes in all processes that serve the same model."""

    @property
    def held_bytes(self) -> int:
        """The bytes that all requests hold now."""
        return self.held.total

    def check(self, size: int, has: int = 0) -> None:
        """Raise Refused if so many bytes would exceed the limit. A single request never does.

        `has` are the bytes that the request holds already.
        """
        held, most = self.held_bytes, self.limits.bodies_bytes
        if held > has and held + size > most:
            words = f"the bodies of the requests under way hold {held} bytes of {most}"
            words += " ([server.limits] bodies_bytes)"
            raise Refused(503, "too_many_bytes", words, retry_after=1)


@dataclass(frozen=True, slots=True)
class LimitsMiddleware:
    """Refuses headers and bodies that are too long, and bodies that arrive too slowly."""

    app: ASGIApp
    bodies: Bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        limits = self.bodies.limits
        # h11 stops reading at its limit, but accepts longer headers that came in one piece.
        size = len(scope["raw_path"]) + len(scope["query_string"])
        for name, value in scope["headers"]:
            size += len(name) + len(value)
            if name == b"content-length":
                check_length(int(value), limits)
                self.bodies.check(_bytes_over_free(int(value)))
        if size > limits.header_bytes:
            raise headers_too_long()
        deadline = asyncio.get_running_loop().time() + limits.arrival_seconds
        body = _Body(receive, self.bodies, deadline)
        try:
            await self.app(scope, body.receive, send)
        finally:
            self.bodies.held.add(-body.taken)


@dataclass(slots=True)
class _Body:
    """One request's body, counted as it arrives."""

    take: Receive
    bodies: Bodies
    deadline: float
    size: int = 0
    weight: int = 0
    """The bytes that the body takes in memory, roughly."""
    taken: int = 0
    """The bytes that are counted, until the request has ended."""
    is_whole: bool = False

    async def receive(self) -> Message:
        if self.is_whole:
            return await self.take()
        try:
            async with asyncio.timeout_at(self.deadline):
                message = await self.take()
        except TimeoutError:
            words = f"the body was not whole after {self.bodies.limits.arrival_seconds:g} s"
            raise Refused(408, "body_too_slow", words, headers={"Connection": "close"}) from None
        self._count(message)
        return message

    def _count(self, message: Message) -> None:
        piece = message.get("body", b"")
        self.size += len(piece)
        self.weight += len(piece) + VALUE_BYTES * sum(map(piece.count, (b",", b"[", b"{")))
        self.is_whole = not message.get("more_body", False)
        check_length(self.size, self.bodies.limits)
        more = _bytes_over_free(self.weight) - self.taken
        self.bodies.check(more, self.taken)
        self.bodies.held.add(more)
        self.taken += more


def _bytes_over_free(size: int) -> int:
    return max(0, size - FREE_BYTES)


def check_length(size: int, limits: Limits) -> None:
    """Raise Refused with 413 for a body over the limit."""
    if size > limits.body_bytes:
        words = f"the body is longer than {limits.body_bytes} bytes ([server.limits] body_bytes)"
        raise Refused(413, "body_too_long", words)


def headers_too_long() -> Refused:
    """Return the 431 for headers over the limit."""
    words = "the headers are longer than is allowed ([server.limits] header_bytes)"
    return Refused(431, "headers_too_long", words)
