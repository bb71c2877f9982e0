"""Counts connections, and chooses one to close when there are too many."""

import resource
from typing import Protocol


class Connection(Protocol):
    """One connection of the crowd."""

    @property
    def is_spare(self) -> bool:
        """True if nothing is under way on it."""
        ...

    def shutdown(self) -> None:
        """Close it, once nothing is under way any more."""
        ...


class Crowd:
    """The connections of one kind of socket; those of another do not take their places.

    Over TCP any process of the machine can connect, and none must use up the descriptors that
    loading and saving need.
    """

    def __init__(self, most: int) -> None:
        _, descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)  # the soft one may be raised
        is_bound = descriptors != resource.RLIM_INFINITY
        self._most = min(most, descriptors // 4) if is_bound else most
        self._there: dict[Connection, None] = {}
        """The oldest first."""

    def join(self, newcomer: Connection) -> bool:
        """Take a place, if need be of the oldest that does nothing; False when all are busy."""
        if len(self._there) >= self._most:
            spare = next((each for each in self._there if each.is_spare), None)
            if spare is None:
                return False
            self.leave(spare)
            spare.shutdown()
        self._there[newcomer] = None
        return True

    def leave(self, connection: Connection) -> None:
        """Give the place back; another connection may have taken it already."""
        self._there.pop(connection, None)
