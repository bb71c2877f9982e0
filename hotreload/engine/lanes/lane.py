"""One generation's share of an engine: what its turns leave for its next turn, and its weights.

`Rotation` gives each lane its turn, and the id of a request says in which lane it was admitted.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any


@dataclass(slots=True)
class Bound:
    """Weights, pool and programs that the forward thread computes a lane's batches with."""

    leaves: list[Any]
    """The engine's whole list of leaves, never changed in place."""
    kv_pool: Any
    memory_pools: Any = None
    """The newer engine's holder of all pools; 0.0.2 has none."""
    dispatcher: Any = None
    """The newer engine's ahead-of-time programs for these leaves, if they are turned on."""
    along: Any = None
    """The `Along` of a lane whose expectations are noted."""


class Lane:
    """While it has its turn, the scheduler holds its state; else it lies here."""

    def __init__(
        self,
        scheduler: Any,
        number: int,
        bound: Bound,
        *,
        has_own_pool: bool = False,
        prompts: int = 0,
        rows: int = 0,
        places: int = 0,
    ) -> None:
        self.number = number
        self.bound = bound
        self.has_own_pool = has_own_pool
        """True where nothing it computes reaches the KV pool in which clients are served."""
        self.prompts = prompts
        """The number of prompts of its only batch; 0 where prompts come and go."""
        self.rows = max(prompts, rows)
        """All its steps are padded to so many; 0 where that is as upstream does it."""
        self.places = places
        """All its steps name so many places of its pool; 0 where that is as upstream does it."""
        self.gathers = prompts > 1
        """True until all of them are there: it launches nothing before."""
        self.ended: Future[None] | None = None
        """Set once no request is admitted any more; its result comes when the lane has ended."""
        self.rests = False
        """True in a turn in which it launches nothing, so that others have more of the steps."""
        self.credit = Fraction(0)
        """The part of a launch that it is owed for the turns in which it rested."""
        self.share: Fraction | None = None
        """Its own share of the clients' steps, where it hurries."""
        self.rounds = self.launches = 0
        """Turns in which it had something to launch, and those in which it did."""
        self._unmerged: Any = None
        self._scheduler = scheduler
        self._state: dict[str, Any] | None = None

    @property
    def is_ending(self) -> bool:
        """True when it is given up as soon as nothing of it is left."""
        return self.ended is not None

    @property
    def awaits_prompts(self) -> bool:
        """True until the last prompt of its first batch has come."""
        return self.gathers and len(self.look("waiting_queue")) < self.prompts

    def to_pad_to(
        self, batches: Sequence[int], places: Sequence[int]
    ) -> tuple[Sequence[int], Sequence[int]]:
        """Return those of upstream's sizes, rows and places, to which its batches are padded."""
        last = len(batches) - 1
        at = next((at for at, size in enumerate(batches) if size >= self.rows), last)
        if not self.places:
            return batches[at:], places[at:]
        return [batches[at]], [min(self.places, places[at])]

    def look(self, name: str) -> Any:
        """One field of its state, wherever that lies now."""
        state = self._state
        return getattr(self._scheduler, name) if state is None else state[name]

    def leave_with(self, state: dict[str, Any]) -> None:
        """Lay down the state for the next turn."""
        self._state = state

    def leave(self, fields: Sequence[str]) -> None:
        """Take the state out of the scheduler: another lane has the next turn."""
        self._state = {name: getattr(self._scheduler, name) for name in fields}
        if self._unmerged is not None:
            _drop_ended_piece(self._unmerged)
            self._state |= {"last_batch": self._unmerged, "cur_batch": self._unmerged}

    def enter(self) -> None:
        """Put the state into the scheduler: what it does from now on, it does for this lane."""
        state, self._state = self._state, None
        assert state is not None, "the lane has its turn already"
        for name, value in state.items():
            setattr(self._scheduler, name, value)

    def rest(self) -> None:
        """Launch nothing in this turn; the result of the launch before is collected all the same.

        Upstream forgets the batch when it has its result. A batch of prompts is kept: its requests
        join the running ones at the next launch, and until then a client may abort them.
        """
        batch = self._scheduler.last_batch
        if batch is not None and batch.forward_mode.is_extend():
            self._unmerged = batch

    def note_merged(self) -> None:
        """Mark the kept batch's result as read, after upstream has merged the batch."""
        if self._unmerged is not None:
            self._unmerged = self._scheduler.last_batch = None


def _drop_ended_piece(batch: Any) -> None:
    """Drop the request whose prompt the batch computed in part, if it was aborted meanwhile.

    The newer engine would go on with it, though its row is free: that ended the engine.
    """
    for rank in getattr(batch, "reqs_info", ()):
        if rank.chunked_req is not None and rank.chunked_req.finished():
            rank.chunked_req = None


def in_lane(lane: int, name: str) -> str:
    """The id of a request of this lane; `name` is unlike all others."""
    return f"{lane:x}.{name}"


def lane_of(rid: str) -> int:
    """The number of the lane that a request was admitted to."""
    return int(rid.partition(".")[0], 16)


def name_of(rid: str) -> str:
    """The name of a request in its lane."""
    return rid.partition(".")[2]


class Rotation:
    """The lanes of one engine, the oldest first, in strict rotation; on the scheduler thread alone.

    Results come from one queue, in the order of the launches, and each lane takes the first one
    there for its own. A lane whose result is to come must have its next turn in order, neither
    earlier nor later: one that was skipped, or had two turns in a row, would hand its tokens to the
    requests of another lane. Whether it launches anything in a turn is free, and one that rests and
    awaits nothing is passed over. One that has ended hands its turn to the next in order; a new one
    comes last.
    """

    def __init__(
        self,
        first: Lane,
        fields: Sequence[str],
        *,
        may_launch: Callable[[Lane], bool],
        awaits_result: Callable[[Lane], bool],
        is_spent: Callable[[Lane], bool],
        on_end: Callable[[Lane], None],
    ) -> None:
        """`may_launch` is asked once in each turn of a lane."""
        self.lanes = [first]
        self.current = first
        """The lane whose turn it is: the scheduler holds its state."""
        self._fields = fields
        self._may_launch = may_launch
        self._awaits_result = awaits_result
        self._is_spent = is_spent
        self._on_end = on_end

    def add(self, lane: Lane) -> None:
        """The lane is the youngest; it has its turn after the one that was the youngest before."""
        self.lanes.append(lane)  # it awaits no result yet, so it may come in anywhere

    def turn(self) -> None:
        """Hand the turn to the next lane that launches or collects; end lanes that are spent."""
        if len(self.lanes) == 1:
            return
        at = self.lanes.index(self.current)
        self.current.leave(self._fields)
        for lane in [*self.lanes[at + 1 :], *self.lanes[: at + 1]]:
            if lane.is_ending and self._is_spent(lane):
                self.lanes.remove(lane)
                self._on_end(lane)
                continue
            lane.rests = not self._may_launch(lane)
            if lane.rests and not self._awaits_result(lane):
                continue
            self.current = lane
            lane.enter()
            return
        raise AssertionError("the lane of the live weights neither ends nor rests")

    @contextmanager
    def visit(self, lane: Lane) -> Iterator[None]:
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
