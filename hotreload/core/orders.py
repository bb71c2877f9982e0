"""What an operator may order; each kind says how it is carried out, and what stays of it."""

import asyncio
from abc import ABC, abstractmethod
from typing import ClassVar, override

from hotreload.core.ledger import Ledger, PastGeneration
from hotreload.core.reload import Reload
from hotreload.types import NOISY, Attempt, By, Generation, Noise, Reason, Revision

NOISE = " + noise"
ROLLED_BACK = Reason("rolled_back", "an operator rolled back from this revision")


class Order(ABC):
    """An order to make a revision live, and the promise to tell how that ended."""

    overrules: ClassVar[bool] = False
    """Whether it comes before its turn when the order before it may be overruled."""
    may_be_overruled: ClassVar[bool] = False
    is_dry_run: ClassVar[bool] = False
    """Whether nothing goes live by it, whatever comes of it."""

    def __init__(self, revision: Revision, by: By) -> None:
        self.revision = revision
        self.by = by
        self.done: asyncio.Future[Attempt] = asyncio.get_running_loop().create_future()
        self.is_overruled = False
        """Whether a later order overrules this one: a rollback does not wait for a download."""

    @abstractmethod
    async def run(self, reload: Reload) -> None:
        """Carry it out by this attempt."""

    def revision_on(self, live: Generation) -> Revision:
        """The revision to make live, given what is live when its turn comes."""
        return self.revision

    def is_fulfilled(self, live: Generation) -> bool:
        """Whether there is nothing to do because this generation is live."""
        return self.revision == live.revision

    def choose(self, ledger: Ledger, left: Revision) -> bool:
        """Have the ledger want what is live now instead of `left`; returns whether it does."""
        ledger.overrule(self.revision, self.by)
        return True

    def refusal_of(self, left: Revision) -> Reason | None:
        """Why the revision that was live before is refused from now on; None if it is not."""
        return None

    def settle(self, attempt: Attempt) -> None:
        """Tell whoever waits for it how it ended."""
        if not self.done.done():
            self.done.set_result(attempt)

    def fail(self, error: Exception) -> None:
        """Tell whoever waits for it which error ended it."""
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # nobody may be waiting for it any more


class ReloadOrder(Order):
    """Load a revision; `force` loads it also when it is live or was refused."""

    may_be_overruled = True

    def __init__(self, revision: Revision, by: By, *, force: bool = False) -> None:
        super().__init__(revision, by)
        self._force = force

    @override
    async def run(self, reload: Reload) -> None:
        await reload.run(lambda: not self.is_overruled)

    @override
    def is_fulfilled(self, live: Generation) -> bool:
        return not self._force and super().is_fulfilled(live)


class DryRunOrder(Order):
    """Find out whether a revision would go live; nothing does, and nothing is refused for it."""

    may_be_overruled = True
    is_dry_run = True

    @override
    async def run(self, reload: Reload) -> None:
        await reload.run_dry(lambda: not self.is_overruled)

    @override
    def is_fulfilled(self, live: Generation) -> bool:
        return False


class RollbackOrder(Order):
    """Go back to a generation, from memory if it is kept there when the turn comes."""

    overrules = True

    def __init__(
        self, to: PastGeneration, by: By, reason: Reason, *, spared: Revision | None = None
    ) -> None:
        """`spared` is not left for being bad, though it may be live when the turn comes."""
        super().__init__(to.revision, by)
        self._spared = spared
        self._to = to
        self._reason = reason

    @override
    async def run(self, reload: Reload) -> None:
        if not await reload.run_back(self._to):
            await reload.run(lambda: True)  # nothing overrules a rollback

    @override
    def refusal_of(self, left: Revision) -> Reason | None:
        return self._reason if left not in (self.revision, self._spared) else None


class NoiseOrder(Order):
    """Put noise on what is live when the turn comes."""

    def __init__(self, live: Generation, by: By, noise: Noise) -> None:
        super().__init__(_with_noise(live, noise), by)
        self._noise = noise

    @override
    async def run(self, reload: Reload) -> None:
        await reload.run_noise(self._noise)

    @override
    def revision_on(self, live: Generation) -> Revision:
        return _with_noise(live, self._noise)

    @override
    def choose(self, ledger: Ledger, left: Revision) -> bool:
        if ledger.wanted not in (None, left):
            return False  # noise is no choice of weights: what the source wishes comes after it
        ledger.wanted = self.revision  # it is gone with the process: it overrules nothing for good
        return True


def _with_noise(live: Generation, noise: Noise) -> Revision:
    """The name of the noisy weights: the same for the same weights and noise."""
    how = f"{noise.seed}-{noise.scale!r}-{noise.num_leaves}"
    label = live.revision.label.removesuffix(NOISE)
    return Revision(f"{NOISY}{how}-{live.fingerprint}", label + NOISE)
