"""Keeps the turns of one engine's ranks in step, and runs jobs of ours on all in the same turn.

Rank 0 sends the messages of each of its turns to all others, also when there are none: so the nth
turn of each rank begins with the same messages. What else ranks do (which batch runs, which lane
has its turn) follows from these alone.
"""

import pickle
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from hotreload.errors import TryAgain

LOOK_MS = 200
"""Time between two looks of a rank that waits for rank 0's next turn, if it is to stop."""

KEPT_WITHDRAWN = 16
"""Number of withdrawn steps that are known to a rank that comes late."""

Job = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """The first message of each turn: one that never came shows."""

    number: int


@dataclass(frozen=True, slots=True)
class TurnOrder:
    """Do the job of this name, in this turn: every rank has one ready."""

    name: str


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """Do no more jobs of this step: rank 0 has given it up."""

    step: str


class OutOfStep(Exception):
    """This rank missed a turn, or has no job ready that all do; only a new start mends that."""


class Turns:
    """The turns of one rank; jobs are made ready by any thread and done by the scheduler's."""

    def __init__(self, scheduler: Any, check_stop: Callable[[], None]) -> None:
        """`check_stop` raises when the loop is to end: a rank that waits cannot see it else."""
        self.leads = scheduler.node_rank == 0
        self._check_stop = check_stop
        self._number = 0
        self._ready: dict[str, tuple[Job, Future[Any]]] = {}
        self._now: dict[str, tuple[Job, Future[Any]]] = {}
        self._ordered: deque[tuple[str, Callable[[], bool]]] = deque()
        self._to_withdraw: deque[str] = deque()
        self._withdrawn: deque[str] = deque(maxlen=KEPT_WITHDRAWN)
        handlers = [(Turn, self._count), (TurnOrder, self._do), (Withdrawn, self._withdraw)]
        scheduler._request_dispatcher._mapping += handlers
        if self.leads:
            broadcast = scheduler.broadcast_pyobj
            scheduler.broadcast_pyobj = lambda received: broadcast(self._with_ours(received))
        else:
            # Upstream's own never ends, and logs an error every five seconds.
            self._socket = scheduler.subscriber
            scheduler.run_subscriber = self._receive

    def make_ready[T](self, name: str, job: Callable[[], T]) -> Future[T]:
        """Have this rank's job of that name ready; it is done when rank 0 orders it."""
        future: Future[T] = Future()
        self._ready[name] = job, future
        if _step_of(name) in self._withdrawn:  # this rank comes late
            self._fail(name)
        return future

    def order(self, name: str, may_be_done: Callable[[], bool]) -> None:
        """Let all ranks do their jobs of that name in the next turn in which they may be done.

        Only on rank 0, and only when all have it ready.
        """
        assert self.leads, "rank 0 decides"
        self._ordered.append((name, may_be_done))

    def take_back(self, name: str) -> bool:
        """Do that job no more; False when it is too late for that."""
        return self._ready.pop(name, None) is not None

    def withdraw(self, step: str) -> None:
        """Let no rank wait any more with a job of this step; only on rank 0.

        It goes the way of the orders: what was ordered before is done before.
        """
        assert self.leads, "rank 0 decides"
        self._to_withdraw.append(step)

    @property
    def has_orders(self) -> bool:
        """True while a message to the others is still due, so that the loop must turn."""
        return bool(self._ordered or self._to_withdraw)

    # --- on the scheduler thread ------------------------------------------------------------------

    def _with_ours(self, received: list[Any]) -> list[Any]:
        """The messages of a turn of rank 0, with its number and the jobs that are done in it."""
        self._number += 1
        withdrawn = [Withdrawn(self._to_withdraw.popleft()) for _ in range(len(self._to_withdraw))]
        return [Turn(self._number), *self._orders(), *withdrawn, *received]

    def _orders(self) -> list[TurnOrder]:
        orders = []
        while self._ordered and (self._is_taken_back() or self._ordered[0][1]()):
            name, _ = self._ordered.popleft()
            job = self._ready.pop(name, None)
            if job is not None:
                self._now[name] = job  # from here on it cannot be taken back
                orders.append(TurnOrder(name))
        return orders

    def _is_taken_back(self) -> bool:
        return self._ordered[0][0] not in self._ready

    def _count(self, turn: Turn) -> None:
        if self.leads:
            return
        if self._number and turn.number != self._number + 1:
            raise OutOfStep(f"after turn {self._number} of rank 0 came turn {turn.number}")
        self._number = turn.number

    def _do(self, order: TurnOrder) -> None:
        held = self._now.pop(order.name, None) or self._ready.pop(order.name, None)
        if held is None:
            raise OutOfStep(f"rank 0 ordered {order.name}, and nothing of that name is ready")
        job, future = held
        future.set_running_or_notify_cancel()
        try:
            future.set_result(job())
        except Exception as fault:  # the caller's, not the engine's: the loop must go on
            future.set_exception(fault)

    def _withdraw(self, message: Withdrawn) -> None:
        self._withdrawn.append(message.step)
        for name in list(self._ready):
            if _step_of(name) == message.step:
                self._fail(name)

    def _fail(self, name: str) -> None:
        held = self._ready.pop(name, None)  # two threads may come here
        if held is not None:
            why = TryAgain(f"rank 0 gave {name} up", code="given_up")
            held[1].set_exception(why)

    def _receive(self) -> Any:
        while not self._socket.poll(LOOK_MS):
            self._check_stop()
        return pickle.loads(self._socket.recv())


def _step_of(name: str) -> str:
    return name.partition(".")[0]
