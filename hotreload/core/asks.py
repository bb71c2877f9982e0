"""What an operator may ask, and the promise to tell how it ended.

Looks whether an ask makes sense now; the reconciler serves it when its turn comes.
"""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hotreload.core.ledger import Place
from hotreload.core.ports import Source
from hotreload.core.reload import Reload, Replica
from hotreload.errors import BadRequest, Busy
from hotreload.types import Attempt, Generation, Noise, Outcome, Reason, Revision

if TYPE_CHECKING:
    from hotreload.core.reconcile import Reconciler

NOISE = " + noise"


@dataclass(slots=True)
class Ask:
    """What an operator asked for, and the promise to tell how it ended."""

    revision: Revision
    back_to: Place | None = None
    """The generation a rollback is to; from memory if it is kept there when its turn comes."""
    force: bool = False
    noise: Noise | None = None
    """Put this on what is live instead of loading the revision."""
    is_overruled: bool = False
    """A rollback was asked for meanwhile, and does not wait for a download."""
    done: asyncio.Future[Attempt] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    async def run(self, reload: Reload) -> None:
        if self.noise is not None:
            await reload.run_noise(self.noise)
        elif self.back_to is not None and reload.keeps(self.back_to.fingerprint):
            await reload.run_back()
        else:
            await reload.run(lambda: not self.is_overruled)


class Operator:
    """What the admin routes reach: reload, rollback, perturb, pin, unpin."""

    def __init__(self, reconciler: "Reconciler", *, source: Source, replica: Replica) -> None:
        self._reconciler = reconciler
        self._ledger = reconciler.ledger
        self._source = source
        self._replica = replica

    async def reload(self, name: str | None, *, force: bool = False) -> asyncio.Future[Attempt]:
        """Ask for a revision (None: the newest); the future tells how the attempt ended."""
        if name is None and self._ledger.pinned and not force:
            raise Busy("a pin holds the live generation; unpin it, or name a revision")
        revision = await self._source.resolve(name)
        asked = self._reconciler.asked
        if asked is not None and asked.revision == revision:
            return asked.done
        if not force and revision == self._replica.live.revision:
            return _settled(self._reconciler.unattempted(revision, Outcome.LIVE, None))
        refusal = self._ledger.refused.get(revision.id)
        if refusal is not None and not force:
            again = f"{refusal.reason.message} (refused before; --force tries it again)"
            reason = Reason(refusal.reason.code, again, refusal.reason.findings)
            return _settled(self._reconciler.unattempted(revision, Outcome.REJECTED, reason))
        return self._reconciler.ask(Ask(revision, force=force))

    async def rollback(self, number: int | None = None) -> asyncio.Future[Attempt]:
        """Ask for the generation before this one, or for a named one, again."""
        place = self._place_to_go_back_to(number)
        previous = self._replica.previous
        if previous is not None and previous.fingerprint == place.fingerprint:
            return self._reconciler.ask(Ask(place.revision, back_to=place))
        if not place.path:
            raise BadRequest(f"generation {place.number} is no longer kept, and has no files")
        revision = await self._source.resolve(place.path)
        if revision != place.revision:
            raise BadRequest(
                f"generation {place.number} is no longer kept in memory, and {place.path} "
                "holds other bytes now"
            )
        return self._reconciler.ask(Ask(revision, back_to=place))

    async def perturb(self, noise: Noise) -> asyncio.Future[Attempt]:
        """Ask for noise on what is live: a swap whose checksums must differ."""
        live = self._replica.live
        if noise.num_leaves > len(live.leaves):
            raise BadRequest(f"num_leaves: the model has {len(live.leaves)} leaves")
        return self._reconciler.ask(Ask(with_noise(live, noise), noise=noise))

    async def pin(self) -> None:
        """Hold the live generation against the source, across restarts too."""
        await self._reconciler.set_pinned(True)

    async def unpin(self) -> None:
        """Follow the source again."""
        await self._reconciler.set_pinned(False)

    def _place_to_go_back_to(self, number: int | None) -> Place:
        live = self._replica.live
        if number == live.number:
            raise BadRequest(f"generation {number} is live already")
        if number is not None:
            place = self._ledger.place_of(number)
        else:
            place = self._ledger.place_before(live)
        if place is None:
            known = ", ".join(str(p.number) for p in self._ledger.generations)
            wish = f"generation {number}" if number is not None else "an earlier generation"
            raise BadRequest(f"{wish} is not remembered; known are {known}")
        return place


def with_noise(live: Generation, noise: Noise) -> Revision:
    """The name of what comes of it: the same for the same weights and noise."""
    how = f"{noise.seed}-{noise.scale!r}-{noise.num_leaves}"
    label = live.revision.label.removesuffix(NOISE)
    return Revision(f"perturbed-{how}-{live.fingerprint}", label + NOISE)


def _settled(attempt: Attempt) -> asyncio.Future[Attempt]:
    promise: asyncio.Future[Attempt] = asyncio.get_running_loop().create_future()
    promise.set_result(attempt)
    return promise
