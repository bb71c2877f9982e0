"""Orders of an operator: how each kind is carried out, what stays of it, which comes first."""

import asyncio
from abc import ABC, abstractmethod
from typing import ClassVar, override

from hotreload.core.attempt import AttemptUnderWay
from hotreload.core.decision import learn
from hotreload.core.ledger import LEFT_BY_HAND, Ledger, PastGeneration
from hotreload.errors import Busy, NotServing
from hotreload.types import NOISY, Attempt, By, Generation, Noise, Reason, Revision

NOISE = " + noise"
ROLLED_BACK = Reason(LEFT_BY_HAND, "an operator rolled back from this revision")


class Order(ABC):
    """An order to make a revision live, and the promise to tell how that ended."""

    overrules: ClassVar[bool] = False
    """True if it comes before its turn when the order before it may be overruled."""
    may_be_overruled: ClassVar[bool] = False
    is_dry_run: ClassVar[bool] = False
    """True if nothing goes live by it, whatever comes of it."""
    holds: bool = False
    """True if what it makes live is held against the source, as by a pin."""

    def __init__(self, revision: Revision, by: By, version: str = "") -> None:
        self.revision = revision
        self.by = by
        self.version = version
        """The name that whoever gives the order has for the weights; empty for none."""
        self.done: asyncio.Future[Attempt] = asyncio.get_running_loop().create_future()
        self.is_overruled = False
        """True once a later order overrules this one: a rollback does not wait for a download."""

    @abstractmethod
    async def run(self, attempt: AttemptUnderWay) -> None:
        """Carry it out by this attempt."""

    def revision_on(self, live: Generation) -> Revision:
        """The revision to make live, given what is live when its turn comes."""
        return self.revision

    def is_fulfilled(self, live: Generation) -> bool:
        """True if there is nothing to do because this generation is live."""
        return self.revision == live.revision

    def is_for(self, revision: Revision, version: str) -> bool:
        """True if it is to make this live too, and by no other name."""
        is_reload = self.revision == revision and not self.is_dry_run
        return is_reload and version in ("", self.version)

    def choose(self, ledger: Ledger, left: Revision) -> bool:
        """Have the ledger want what is live now instead of `left`; returns whether it does."""
        ledger.overrule(self.revision, self.by)
        return True

    def refusal_of(self, left: Revision) -> Reason | None:
        """The reason to refuse the revision that was live before; None if it is not refused."""
        return None

    def settle(self, attempt: Attempt) -> None:
        """Tell all that wait for it how it ended."""
        if not self.done.done():
            self.done.set_result(attempt)

    def fail(self, error: Exception) -> None:
        """Tell all that wait for it which error ended it."""
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # nobody may be waiting for it any more


class ReloadOrder(Order):
    """Load a revision; `force` loads it also when it is live or was refused."""

    may_be_overruled = True

    def __init__(
        self, revision: Revision, by: By, *, force: bool = False, version: str = ""
    ) -> None:
        super().__init__(revision, by, version)
        self._force = force

    @override
    async def run(self, attempt: AttemptUnderWay) -> None:
        await attempt.reload(lambda: not self.is_overruled, self.version, force=self._force)

    @override
    def is_fulfilled(self, live: Generation) -> bool:
        return not self._force and super().is_fulfilled(live)


class DryRunOrder(Order):
    """Find out whether a revision would go live; nothing does, and nothing is refused for it."""

    may_be_overruled = True
    is_dry_run = True

    @override
    async def run(self, attempt: AttemptUnderWay) -> None:
        await attempt.rehearse(lambda: not self.is_overruled)

    @override
    def is_fulfilled(self, live: Generation) -> bool:
        return False


class RollbackOrder(Order):
    """Go back to a generation, from memory if it is kept there when the turn comes."""

    overrules = True

    def __init__(
        self,
        to: PastGeneration,
        by: By,
        reason: Reason,
        *,
        spared: Revision | None = None,
        leaving: Generation | None = None,
        holds: bool = False,
    ) -> None:
        """`spared` is not left for being bad, though it may be live when the turn comes.

        Where `leaving` is given, nothing else is left: another one may be live by then. With
        `holds` the source is not followed afterwards, as after a pin.
        """
        super().__init__(to.revision, by)
        self.holds = holds and not to.revision.is_noise  # a restart would forget noise
        self._spared = spared
        self._leaving = leaving
        self._to = to
        self._reason = reason

    @override
    async def run(self, attempt: AttemptUnderWay) -> None:
        await attempt.go_back(self._to)

    @override
    def is_fulfilled(self, live: Generation) -> bool:
        return super().is_fulfilled(live) or self._leaving not in (None, live)

    @override
    def choose(self, ledger: Ledger, left: Revision) -> bool:
        return self._may_leave(left) and super().choose(ledger, left)

    @override
    def refusal_of(self, left: Revision) -> Reason | None:
        is_bad = self._may_leave(left) and left not in (self.revision, self._spared)
        return self._reason if is_bad else None

    def _may_leave(self, left: Revision) -> bool:
        return self._leaving is None or left == self._leaving.revision


class NoiseOrder(Order):
    """Put noise on what is live when the turn comes."""

    def __init__(self, live: Generation, by: By, noise: Noise) -> None:
        super().__init__(_with_noise(live, noise), by)
        self._noise = noise

    @override
    async def run(self, attempt: AttemptUnderWay) -> None:
        await attempt.add_noise(self._noise)

    @override
    def revision_on(self, live: Generation) -> Revision:
        return _with_noise(live, self._noise)

    @override
    def choose(self, ledger: Ledger, left: Revision) -> bool:
        if ledger.wanted not in (None, left):
            return False  # noise is no choice of weights: what the source wishes comes after it
        ledger.wanted = self.revision  # it is gone with the process: it overrules nothing for good
        return True


class OrderQueue:
    """One order at a time; one that overrules it may be given before it is done."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._first: Order | None = None
        self._overruling: Order | None = None
        self._is_over = False

    @property
    def first(self) -> Order | None:
        """The order that is not done yet, by what is known of its revision now."""
        if self._first is not None:
            self._first.revision = learn(self._ledger, self._first.revision)
        return self._first

    @property
    def promises(self) -> list[asyncio.Future[Attempt]]:
        """The futures of the orders that are not done yet."""
        return [order.done for order in (self.first, self._overruling) if order is not None]

    def take(self, order: Order, under_way: AttemptUnderWay | None) -> None:
        """Take an operator's order; Busy while another is not done.

        A rollback overrules what can still be given up.
        """
        if self._is_over:
            raise NotServing("hotreload is stopping", code="stopping")
        if self.first is None:
            self._first = order
        elif order.overrules and self._may_be_overruled(self.first, under_way):
            self.first.is_overruled, self._overruling = True, order
        else:
            raise Busy(f"{self.first.revision} was asked for and is not done; ask again then")

    def _may_be_overruled(self, order: Order, under_way: AttemptUnderWay | None) -> bool:
        if not order.may_be_overruled or self._overruling is not None:
            return False
        if under_way is None or under_way.progress.revision != order.revision:
            return True
        return under_way.wanted.may_give_up

    def drop(self, order: Order) -> None:
        """End the turn of the first order; all that still wait for it are told."""
        self._first, self._overruling = self._overruling, None
        order.done.cancel()

    def end(self) -> None:
        """Cancel all orders: none will be carried out any more."""
        self._is_over = True
        for promise in self.promises:
            promise.cancel()
        self._first = self._overruling = None


def _with_noise(live: Generation, noise: Noise) -> Revision:
    """The name of the noisy weights: the same for the same weights and noise."""
    how = f"{noise.seed}-{noise.scale!r}-{noise.num_leaves}"
    label = live.revision.label.removesuffix(NOISE)
    return Revision(f"{NOISY}{how}-{live.fingerprint}", label + NOISE)
