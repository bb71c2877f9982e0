"""Gives each lane its turn, in strict rotation.

Results come from one queue, in the order of the launches. A lane that is skipped once, or has two
turns in a row, hands its tokens to the requests of another lane. So a lane with nothing to do takes
its turn as well; one that has ended hands it to the next in order; a new one comes last.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from hotreload.engine.lanes.lane import Lane


class Rotation:
    """The lanes of one engine, the oldest first; used by the scheduler thread alone."""

    def __init__(
        self,
        first: Lane,
        fields: Sequence[str],
        *,
        is_spent: Callable[[Lane], bool],
        on_end: Callable[[Lane], None],
    ) -> None:
        self.lanes = [first]
        self.current = first
        """The lane whose turn it is: the scheduler holds its state."""
        self._fields = fields
        self._is_spent = is_spent
        self._on_end = on_end

    def add(self, lane: Lane) -> None:
        """The lane is the youngest; it has its turn after the one that was the youngest before."""
        self.lanes.append(lane)  # it awaits no result yet, so it may come in anywhere

    def turn(self) -> None:
        """Hand the turn to the next lane in order; end those that have nothing left."""
        if len(self.lanes) == 1:
            return
        at = self.lanes.index(self.current)
        self.current.leave(self._fields)
        for lane in [*self.lanes[at + 1 :], *self.lanes[: at + 1]]:
            if lane.is_ending and self._is_spent(lane):
                self.lanes.remove(lane)
                self._on_end(lane)
                continue
            self.current = lane
            lane.enter()
            return
        raise AssertionError("the lane of the live weights never ends")

    @contextmanager
    def visiting(self, lane: Lane) -> Iterator[None]:
        """Let the scheduler work for another lane for a moment, without launching anything."""
        if lane is self.current:
            yield
            return
        self.current.leave(self._fields)
        lane.enter()
        try:
            yield
        finally:
            lane.leave(self._fields)
            self.current.enter()
