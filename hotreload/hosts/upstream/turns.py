"""Keeps the turns of one engine's ranks in step, and runs hotreload's jobs in the same turn on all.

Rank 0 sends the messages of each of its turns to all others, even if there are none: the nth turn
of each rank begins with the same messages. The batch that runs, and the lane that has its turn,
follow from these messages alone. Between hosts they are encrypted: the others unpickle them, and
must know the sender. The encryption is libzmq's CURVE, with a key pair derived from the join
secret. The public key is never sent: a process without the secret can neither send as rank 0 nor
read its messages.
"""

import hashlib
import hmac
import pickle
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hotreload.errors import ConfigError, TryAgain

PURPOSE = b"hotreload: the key by which rank 0 sends its turns"
LOOK_MS = 200
"""The time after which a rank that waits for rank 0's next turn looks whether it must stop."""

KEPT_WITHDRAWN = 16
"""The number of withdrawn steps that a rank remembers, for jobs that it makes ready late."""

Job = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """The first message of each turn; its number reveals a lost turn."""

    number: int


@dataclass(frozen=True, slots=True)
class TurnOrder:
    """The order to do the job of this name in this turn; every rank has it ready."""

    name: str


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The order to do no more jobs of this step, which rank 0 has given up."""

    step: str


class OutOfStep(Exception):
    """This rank missed a turn, or has not the ordered job ready; only a new start helps."""


class Turns:
    """The turns of one rank; any thread makes a job ready, and the scheduler thread does it."""

    def __init__(self, scheduler: Any, check_stop: Callable[[], None]) -> None:
        """`check_stop` raises if the loop must end; a rank that waits for a turn calls it."""
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
            scheduler.broadcast_pyobj = lambda received: broadcast(self._add_own_messages(received))
        else:
            # Upstream's own receive never ends, and logs an error every five seconds.
            self._socket = scheduler.subscriber
            scheduler.run_subscriber = self._receive

    def make_ready[T](self, name: str, job: Callable[[], T]) -> Future[T]:
        """Make this rank's job of that name ready; rank 0's order runs it."""
        future: Future[T] = Future()
        self._ready[name] = job, future
        if _step_of(name) in self._withdrawn:  # this rank comes late
            self._fail(name)
        return future

    def order(self, name: str, may_be_done: Callable[[], bool]) -> None:
        """Order the job of that name on all ranks, in the next turn in which it may be done.

        Only rank 0 calls it, once all have the job ready.
        """
        assert self.leads, "rank 0 decides"
        self._ordered.append((name, may_be_done))

    def take_back(self, name: str) -> bool:
        """Cancel the job of that name; return False if it is too late."""
        return self._ready.pop(name, None) is not None

    def withdraw(self, step: str) -> None:
        """Cancel the waiting jobs of this step on all ranks; only rank 0 calls it.

        The cancel is sent as the orders are: jobs that were ordered before it are done before.
        """
        assert self.leads, "rank 0 decides"
        self._to_withdraw.append(step)

    @property
    def has_orders(self) -> bool:
        """True while a message to the others is due: the loop must turn."""
        return bool(self._ordered or self._to_withdraw)

    # --- on the scheduler thread ------------------------------------------------------------------

    def _add_own_messages(self, received: list[Any]) -> list[Any]:
        """Return the messages of rank 0's turn, with its number and its orders before them."""
        self._number += 1
        withdrawn = [Withdrawn(self._to_withdraw.popleft()) for _ in range(len(self._to_withdraw))]
        return [Turn(self._number), *self._take_due_orders(), *withdrawn, *received]

    def _take_due_orders(self) -> list[TurnOrder]:
        orders = []
        while self._ordered and (self._is_taken_back() or self._ordered[0][1]()):
            name, _ = self._ordered.popleft()
            job = self._ready.pop(name, None)
            if job is not None:
                self._now[name] = job  # from now on it cannot be taken back
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
        except Exception as fault:  # an error for the caller: the engine's loop must go on
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


@dataclass(frozen=True, slots=True)
class _Keys:
    """Rank 0's key pair."""

    public: bytes
    secret: bytes


@contextmanager
def guard_sockets(join_secret: str | None) -> Iterator[None]:
    """Encrypt the sockets between hosts of a scheduler that is constructed in this block."""
    from sgl_jax.srt.managers import scheduler

    if join_secret is None:
        yield
        return
    make, keys = scheduler.get_zmq_socket, _keys_of(join_secret)

    def make_guarded(context: Any, kind: Any, endpoint: str, bind: bool) -> Any:
        is_between_hosts = endpoint.startswith("tcp://")
        made_by = _GuardedContext(context, keys, bind) if is_between_hosts else context
        return make(made_by, kind, endpoint, bind)

    scheduler.get_zmq_socket = make_guarded
    try:
        yield
    finally:
        scheduler.get_zmq_socket = make


class _GuardedContext:
    """Makes encrypted sockets, in a context's place; sglang-jax then binds or connects them."""

    def __init__(self, context: Any, keys: _Keys, binds: bool) -> None:
        self._context = context
        self._keys = keys
        self._binds = binds

    def socket(self, kind: Any) -> Any:
        """Return a socket that accepts only CURVE."""
        import zmq

        made = self._context.socket(kind)
        if self._binds:
            made.curve_server = True
            made.curve_publickey, made.curve_secretkey = self._keys.public, self._keys.secret
        else:
            made.curve_serverkey = self._keys.public
            made.curve_publickey, made.curve_secretkey = zmq.curve_keypair()
        return made


def _keys_of(join_secret: str) -> _Keys:
    import zmq
    from zmq.utils import z85

    if not zmq.has("curve"):
        raise ConfigError(
            "[engine] join_secret_file: the installed pyzmq cannot encrypt (it has no CURVE); "
            "install its wheel"
        )
    drawn = hmac.new(join_secret.encode(), PURPOSE, hashlib.sha256).digest()
    secret: bytes = z85.encode(drawn)  # type: ignore[no-untyped-call]
    return _Keys(zmq.curve_public(secret), secret)
