"""The orders of an operator: how each is carried out, its lasting effects, and the queue."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, override

from hotreload.attempts import Attempt, By
from hotreload.core.attempt import AttemptUnderWay
from hotreload.core.decision import learn
from hotreload.core.ledger import LEFT_BY_HAND, Ledger, PastGeneration
from hotreload.errors import BadRequest, Busy, NothingOfThatName, NotServing
from hotreload.types import NOISY, Generation, Noise, Reason, Revision

NOISE = " + noise"
ROLLED_BACK = Reason(LEFT_BY_HAND, "an operator rolled back from this revision")


@dataclass(eq=False)
class Order(ABC):
    """An order to make a revision live, with a future that holds how the attempt ended."""

    revision: Revision
    by: By
    version: str = ""
    """The caller's name for the weights; empty for none."""
    overrules: ClassVar[bool] = False
    """True if this order may end the order before it, when that allows it."""
    may_be_overruled: ClassVar[bool] = False
    is_dry_run: ClassVar[bool] = False
    """True if this order never makes anything live."""
    holds: bool = field(default=False, kw_only=True)
    """True if this order also pins what it makes live."""
    is_overruled: bool = field(default=False, init=False)
    """True once a rollback overrules this order: a rollback does not wait for a download."""

    def __post_init__(self) -> None:
        self.done: asyncio.Future[Attempt] = asyncio.get_running_loop().create_future()

    @abstractmethod
    async def run(self, attempt: AttemptUnderWay) -> None:
        """Carry out the order by this attempt."""

    def revision_on(self, live: Generation) -> Revision:
        """Return the revision to make live, given the live generation when its turn comes."""
        return self.revision

    def is_fulfilled(self, live: Generation) -> bool:
        """Return True if there is nothing to do because this generation is live."""
        return self.revision == live.revision

    def is_for(self, revision: Revision, version: str) -> bool:
        """Return True if this order also makes this revision live, by this version or any."""
        is_reload = self.revision == revision and not self.is_dry_run
        return is_reload and version in ("", self.version)

    def choose(self, ledger: Ledger, left: Revision) -> bool:
        """Have the ledger want this order's revision instead of `left`; return whether it does."""
        ledger.overrule(self.revision, self.by)
        return True

    def refusal_of(self, left: Revision) -> Reason | None:
        """Return the reason to refuse the revision that was live before; None to refuse nothing."""
        return None

    def settle(self, attempt: Attempt) -> None:
        """Give all waiters the ended attempt."""
        if not self.done.done():
            self.done.set_result(attempt)

    def fail(self, error: Exception) -> None:
        """Raise this error in all waiters."""
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # there may be no waiter any more


@dataclass(eq=False)
class ReloadOrder(Order):
    """Loads a revision; `force` loads it even if it is live or was refused."""

    force: bool = field(default=False, kw_only=True)
    may_be_overruled = True

    @override
    async def run(self, attempt: AttemptUnderWay) -> None:
        await attempt.reload(lambda: not self.is_overruled, self.version, force=self.force)

    @override
    def is_fulfilled(self, live: Generation) -> bool:
        return not self.force and super().is_fulfilled(live)


class DryRunOrder(Order):
    """Finds out whether a revision would go live; makes nothing live and refuses nothing."""

    may_be_overruled = True
    is_dry_run = True

    @override
    async def run(self, attempt: AttemptUnderWay) -> None:
        await attempt.rehearse(lambda: not self.is_overruled)

    @override
    def is_fulfilled(self, live: Generation) -> bool:
        return False


@dataclass(eq=False, kw_only=True)
class RollbackOrder(Order):
    """Goes back to a generation, from memory if it is kept there when the turn comes."""

    to: PastGeneration
    reason: Reason
    spared: Revision | None
    """A revision that is never refused, although it may be live when the turn comes."""
    leaving: Generation | None
    """The one generation that the order leaves, if another may be live by then."""
    overrules = True

    @override
    async def run(self, attempt: AttemptUnderWay) -> None:
        await attempt.go_back(self.to)

    @override
    def is_fulfilled(self, live: Generation) -> bool:
        return super().is_fulfilled(live) or self.leaving not in (None, live)

    @override
    def choose(self, ledger: Ledger, left: Revision) -> bool:
        return self._may_leave(left) and super().choose(ledger, left)

    @override
    def refusal_of(self, left: Revision) -> Reason | None:
        is_bad = self._may_leave(left) and left not in (self.revision, self.spared)
        return self.reason if is_bad else None

    def _may_leave(self, left: Revision) -> bool:
        return self.leaving is None or left == self.leaving.revision


@dataclass(eq=False, kw_only=True)
class NoiseOrder(Order):
    """Puts noise on the weights that are live when the turn comes."""

    noise: Noise

    @override
    async def run(self, attempt: AttemptUnderWay) -> None:
        await attempt.add_noise(self.noise)

    @override
    def revision_on(self, live: Generation) -> Revision:
        return with_noise(live, self.noise)

    @override
    def choose(self, ledger: Ledger, left: Revision) -> bool:
        if ledger.wanted not in (None, left):
            return False  # noise is no choice of weights: the source's wish comes after it
        ledger.wanted = self.revision  # noise ends with the process, and overrules no wish
        return True


def find_numbered(ledger: Ledger, live: Generation, number: int) -> PastGeneration:
    """Find the generation of this number; BadRequest when it is live, or forgotten."""
    if number == live.number:
        raise BadRequest(f"generation {number} is live already")
    place = ledger.past(number)
    if place is None:
        known = ", ".join(str(each.number) for each in ledger.generations)
        raise NothingOfThatName(f"generation {number} is not remembered; known are {known}")
    return place


def find_last_with_files(ledger: Ledger, live: Generation) -> PastGeneration:
    """Find the newest earlier generation that has files; BadRequest without any."""
    place = ledger.past_before(live)
    if place is None:
        raise BadRequest(f"no generation before {live.number} is left to go back to")
    return place


WhereToFind = Callable[[PastGeneration], str | None]
"""Return where a generation's weights can be loaded from; None if from nowhere."""


def find_last(ledger: Ledger, live: Generation, where: WhereToFind) -> PastGeneration:
    """Find the generation just before; BadRequest when its weights are gone: none is skipped."""
    older = ledger.before(live)
    if not older:
        raise BadRequest(f"there is nothing before generation {live.number} to go back to")
    if where(before := older[0]) is None:
        raise BadRequest(
            f"generation {before.number} ({before.revision.label}), the one before, is no "
            f"longer in memory and has no files; {_list_others(reversed(older), where)}"
        )
    return before


def _list_others(older: Iterable[PastGeneration], where: WhereToFind) -> str:
    found = [(place, at) for place in older if (at := where(place)) is not None]
    if not found:
        return "nor is there any other: stage its weights again"
    listed = ", ".join(f"{each.number} ({each.revision.label}, {at})" for each, at in found)
    return f"there is still {listed}: name it, or stage the weights you want"


class OrderQueue:
    """Holds one order at a time, and one rollback that overrules it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._first: Order | None = None
        self._overruling: Order | None = None
        self._is_over = False

    @property
    def first(self) -> Order | None:
        """The order that is not done yet; its revision is named by content once that is known."""
        if self._first is not None:
            self._first.revision = learn(self._ledger, self._first.revision)
        return self._first

    @property
    def promises(self) -> list[asyncio.Future[Attempt]]:
        """The futures of all orders that are not done yet."""
        return [order.done for order in (self.first, self._overruling) if order is not None]

    def take(self, order: Order, under_way: AttemptUnderWay | None) -> None:
        """Take an order; Busy while another is not done.

        A rollback is taken beside an order that can still be given up, and ends it.
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
        """End the first order's turn, and cancel its future for any waiter that is left."""
        self._first, self._overruling = self._overruling, None
        order.done.cancel()

    def end(self) -> None:
        """Cancel all orders and take no more."""
        self._is_over = True
        for promise in self.promises:
            promise.cancel()
        self._first = self._overruling = None


def with_noise(live: Generation, noise: Noise) -> Revision:
    """Make the revision of noisy weights: the same for the same weights and noise."""
    how = f"{noise.seed}-{noise.scale!r}-{noise.num_leaves}"
    label = live.revision.label.removesuffix(NOISE)
    return Revision(f"{NOISY}{how}-{live.fingerprint}", label + NOISE)
