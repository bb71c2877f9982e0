"""Places for connections: how many there may be, and which of too many are closed."""

import logging
import os
import resource
from collections.abc import Callable
from typing import Protocol

from hotreload.server.http.shared_counters import SharedNumber

log = logging.getLogger("hotreload.server")


class Elsewhere(Protocol):
    """Another process, which answers some of the requests that come here."""

    def is_for(self, head: bytes) -> bool:
        """True if a request that begins so is to be answered there, as far as can be told yet."""
        ...

    def hand_over(self, descriptor: int, data: bytes) -> bool:
        """Give away a connection, on which this came and is not answered; False if it stays.

        OSError where it can neither go nor be answered here.
        """
        ...

    def make_room(self, *, is_local: bool) -> bool:
        """Close a connection there that does nothing; False if there is none."""
        ...

    def go(self) -> None:
        """Have it answer who came, and take nobody any more."""
        ...

    @property
    def is_gone(self) -> bool:
        """True if nobody is answered there."""
        ...


class CrowdMember(Protocol):
    """A connection, as far as its crowd knows it."""

    @property
    def is_spare(self) -> bool:
        """True if it may be closed: it is idle, and all it was sent is on its way."""
        ...

    def shutdown(self) -> None:
        """Close it."""
        ...


class Crowd:
    """The connections of one kind of socket; those of another do not take their places.

    Over TCP any process of the machine can connect, and none must use up the descriptors that
    loading and saving need.
    """

    def __init__(
        self,
        most: int,
        there: SharedNumber | None = None,
        elsewhere_make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        """`there` counts those of all processes that answer on such sockets."""
        _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)  # the soft one may be raised
        is_bound = descriptors != resource.RLIM_INFINITY
        self._most = min(most, descriptors // 4) if is_bound else most
        self._there: dict[CrowdMember, None] = {}
        """The oldest of ours first."""
        self._count = there or SharedNumber()
        self._elsewhere_make_room = elsewhere_make_room
        self._has_said_so = False

    def join(self, newcomer: CrowdMember) -> bool:
        """Take a place, if need be of the oldest that does nothing; False when all are busy.

        So it is for who took the last descriptor: one is left for everything else.
        """
        is_full = self._count.total >= self._most or not self._is_a_descriptor_left()
        if is_full and not self.make_room():
            return False
        self.take_in(newcomer)
        return True

    def take_in(self, newcomer: CrowdMember) -> None:
        """Give a place to one that another process had given one."""
        self._there[newcomer] = None
        self._count.add(1)

    def make_room(self) -> bool:
        """Close the oldest connection that does nothing; False if there is none."""
        spare = next((each for each in self._there if each.is_spare), None)
        if spare is None:
            return self._elsewhere_make_room()
        self.leave(spare)
        spare.shutdown()
        return True

    def _is_a_descriptor_left(self) -> bool:
        """Look; that there is none is logged once, until there is one again."""
        try:
            os.close(os.eventfd(0))
        except OSError as error:
            if not self._has_said_so:
                log.warning("server.no_descriptor_left", extra={"error": error.strerror})
            self._has_said_so = True
            return False
        self._has_said_so = False
        return True

    def leave(self, connection: CrowdMember) -> None:
        """Give the place back; another connection may have taken it already."""
        if connection in self._there:
            del self._there[connection]
            self._count.add(-1)
