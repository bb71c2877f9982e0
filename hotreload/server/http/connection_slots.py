"""The connection limit: how many connections there may be, and which idle one is closed for more.

Connections on the unix sockets and those over TCP have separate limits.
"""

import logging
import os
import resource
from collections.abc import Callable
from typing import Protocol

from hotreload.server.http.shared_counters import SharedCounter

log = logging.getLogger("hotreload.server")


class OtherProcess(Protocol):
    """Another process, which answers some of the requests that this one accepts."""

    def is_for(self, head: bytes) -> bool:
        """True if that process answers requests that begin with these bytes."""
        ...

    def hand_over(self, descriptor: int, data: bytes) -> bool:
        """Give that process a connection and its unanswered bytes; False if it takes none now.

        OSError where this process cannot answer the request either.
        """
        ...

    def make_room(self, *, is_local: bool) -> bool:
        """Have that process close an idle connection; False if it has none."""
        ...

    def shut_down(self) -> None:
        """Have that process answer the requests it has, and accept no more."""
        ...

    @property
    def is_shut_down(self) -> bool:
        """True if that process answers no request any more."""
        ...


class SlotHolder(Protocol):
    """A connection, as the connection limit sees it."""

    @property
    def is_closable(self) -> bool:
        """True if the connection is idle and all its answers are written."""
        ...

    def shutdown(self) -> None:
        """Close the connection."""
        ...


class ConnectionSlots:
    """The slots for connections on one kind of socket, unix or TCP.

    Any process of the machine can connect over TCP. The limit keeps enough descriptors free for
    loading checkpoints and saving the state.
    """

    def __init__(
        self,
        most: int,
        total: SharedCounter | None = None,
        make_room_in_other: Callable[[], bool] = lambda: False,
    ) -> None:
        """`total` counts the connections of all processes that answer on such sockets."""
        _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)  # the soft limit may be raised
        is_bound = descriptors != resource.RLIM_INFINITY
        self._most = min(most, descriptors // 4) if is_bound else most
        self._connections: dict[SlotHolder, None] = {}
        """The connections of this process, the oldest first."""
        self._count = total or SharedCounter()
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
