"""Takes the orders of an operator, and publishes each with the name of its caller.

An order that makes no sense now is refused here; the reconciler carries out the others in turn.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hotreload.attempts import Attempt, By
from hotreload.core.engines.replica import Replicas
from hotreload.core.ledger import Ledger, PastGeneration
from hotreload.core.orders import (
    ROLLED_BACK,
    DryRunOrder,
    NoiseOrder,
    ReloadOrder,
    RollbackOrder,
    find_last_with_files,
    find_numbered,
    with_noise,
)
from hotreload.core.ports import Engine, Source
from hotreload.core.reconcile import Reconciler
from hotreload.errors import (
    MOST_WORDS,
    BadRequest,
    Busy,
    HotReloadError,
    NothingOfThatName,
    NotSaved,
    NotServing,
    SourceUnavailable,
    TryAgain,
    cut,
)
from hotreload.events import OperatorAsked, Publish
from hotreload.threads import in_thread
from hotreload.types import Generation, Noise, Reason, Revision


@dataclass(eq=False)
class Operator:
    """Carries out the administrators' routes: reload, rollback, perturb, name, pin, unpin."""

    reconciler: Reconciler
    source: Source
    replicas: Replicas[Engine]
    publish: Publish

    @property
    def ledger(self) -> Ledger:
        """The record of attempts."""
        return self.reconciler.ledger

    async def reload(
        self, name: str | None, *, by: By, force: bool = False, version: str = ""
    ) -> asyncio.Future[Attempt]:
        """Order a revision (None: the newest); the future holds how the attempt ended.

        `version` is the caller's name for these weights.
        """
        with self._publish_order(by, name):
            if name is None and self.ledger.pinned and not force:
                words = f"{self.ledger.held_by} holds the live generation"
                raise Busy(f"{words}: hotreload unpin ends that; or name a revision")
            revision = await self.source.resolve(name)
            first = self.reconciler.orders.first
            if first is not None and first.is_for(revision, version):
                return first.done
            order = ReloadOrder(revision, by, force=force, version=version)
            refusal = self.ledger.refused.get(revision.id)
            if order.is_fulfilled(self.replicas.live) or (refusal is not None and not force):
                order.settle(await self.reconciler.answer_decided(order))
            else:
                self.reconciler.take(order)
            return order.done

    async def rehearse(self, name: str | None, *, by: By) -> asyncio.Future[Attempt]:
        """Order a dry run of a revision (None: the newest), even of a refused or live one."""
        with self._publish_order(by, name):
            return self.reconciler.take(DryRunOrder(await self.source.resolve(name), by))

    async def rollback(
        self,
        number: int | None = None,
        *,
        by: By,
        reason: Reason = ROLLED_BACK,
        leaving: Generation | None = None,
        holds: bool = False,
    ) -> asyncio.Future[Attempt]:
        """Order the generation before the live one, or a named one, again.

        While an attempt has changed only some engines, that attempt's revision is refused, and they
        return to the live generation. With `leaving`, the order does nothing if another generation
        is live when its turn comes. With `holds` the source is not followed afterwards, as after a
        pin; but taking noise off is no choice of weights, and holds nothing.
        """
        with self._publish_order(by, None if number is None else str(number)):
            # An attempt that has changed some engines is to blame, and not the live revision.
            spared = self.replicas.live.revision if self.replicas.trial is not None else None
            holds = holds and not (number is None and self.replicas.live.revision.is_noise)
            place = await self._place_to_go_back_to(number)
            order = RollbackOrder(
                revision=place.revision,
                by=by,
                holds=holds and not place.revision.is_noise,  # a restart would forget noise
                to=place,
                reason=reason,
                spared=spared,
                leaving=leaving,
            )
            done = self.reconciler.take(order)
            if (trial := self.replicas.trial) is not None:
                trial.reject(reason)
            return done

    async def leave(self, reason: Reason, left: Generation, *, by: By) -> str | None:
        """Roll back from generation `left` without an operator's order; return why not, if so.

        If only some engines have it yet, it is refused, and they return to the live generation.
        """
        trial = self.replicas.trial
        if trial is not None and trial.generation == left:
            with self._publish_order(by):
                trial.reject(reason)
            return None
        if left != self.replicas.live:
            return None  # it has been left meanwhile
        if self.ledger.pinned:
            return f"{self.ledger.held_by} holds the live generation"
        try:
            await self.rollback(by=by, reason=reason, leaving=left)
        except (BadRequest, Busy, NotServing, TryAgain) as why:
            return str(why)
        return None

    async def perturb(self, noise: Noise, *, by: By) -> asyncio.Future[Attempt]:
        """Order noise on the live weights: a swap whose checksums must differ."""
        with self._publish_order(by, str(noise)):
            live = self.replicas.live
            if noise.num_leaves > len(live.leaves):
                raise BadRequest(f"num_leaves: the model has {len(live.leaves)} leaves")
            return self.reconciler.take(NoiseOrder(with_noise(live, noise), by, noise=noise))

    async def name_live(self, version: str, *, by: By) -> Generation:
        """Give the live generation this version, which every later answer carries."""
        with self._publish_order(by, version):
            return await self.reconciler.name_live(version)

    async def pin(self, *, by: By) -> Generation:
        """Hold the live generation against the source, across restarts too.

        Earlier orders are carried out first; an attempt that the source wished ends. Raises
        NotSaved, and holds nothing, when a restart would forget the pin.
        """
        with self._publish_order(by):
            if self.replicas.live.revision.is_noise:
                raise NotSaved(
                    "not pinned: noise answers, and a restart would forget it; "
                    "`hotreload rollback` takes it off"
                )
            return await self.reconciler.set_pinned(True, by)

    async def unpin(self, *, by: By) -> Generation:
        """Follow the source again; NotSaved when a restart would pin the generation again."""
        with self._publish_order(by):
            return await self.reconciler.set_pinned(False, by)

    @contextmanager
    def _publish_order(self, by: By, wish: str | None = None) -> Iterator[None]:
        """Publish the order and its caller, also when the order is refused."""
        wish = wish and cut(wish, MOST_WORDS)
        try:
            yield
        except HotReloadError as refusal:
            self.publish(OperatorAsked(by, wish, refusal.reason.message))
            raise
        self.publish(OperatorAsked(by, wish))

    async def _place_to_go_back_to(self, number: int | None) -> PastGeneration:
        """Find the generation to roll back to; BadRequest lists the others that can be loaded."""
        live, ledger = self.replicas.live, self.ledger
        if self.replicas.trial is not None and number in (None, live.number):
            return ledger.place_of(live)
        try:
            if number is None:
                place = find_last_with_files(ledger, live)
            else:
                place = find_numbered(ledger, live, number)
            if self.replicas.keeps(place) or (gone := await self._why_gone(place)) is None:
                return place
            words = f"{_describe(place)} is no longer kept in memory, and {gone}"
            raise NothingOfThatName(words)
        except BadRequest as none:
            others = "; ".join(await self.list_rollback_targets()) or "nothing"
            raise type(none)(f"{none}; what can be had: {others}") from none

    async def _why_gone(self, place: PastGeneration) -> str | None:
        """Say why a generation cannot be loaded again; None when it can."""
        if not place.path:
            return "has no files"
        try:
            there = await self.source.resolve(place.path)
        except (BadRequest, SourceUnavailable) as gone:
            return f"its files are gone from {place.path}: {gone}"
        if there.is_unread:  # fetching it will show
            return None
        return None if there == place.revision else f"{place.path} holds other bytes now"

    async def list_rollback_targets(self) -> list[str]:
        """List the generations that a rollback can load, newest first, as the source saw them last.

        Each comes with where its weights are, and the command.
        """
        listed = await in_thread(lambda cancel: self.source.list_seen(), is_read=False)
        paths, revisions = {each.path for each in listed}, {each.revision for each in listed}
        live, newest = self.replicas.live.revision, dict[Revision, str]()
        for place in reversed(self.ledger.generations):
            if place.revision in newest or place.revision == live:
                continue
            if self.replicas.keeps(place):
                newest[place.revision] = _describe_with_command(place, "kept in memory")
            elif place.path and (place.path in paths or place.revision in revisions):
                newest[place.revision] = _describe_with_command(place, "restaged from its files")
        return [*newest.values()]


def _describe(place: PastGeneration, how: str = "") -> str:
    about = ", ".join(filter(None, (place.revision.label, how)))
    return f"generation {place.number} ({about})" if about else f"generation {place.number}"


def _describe_with_command(place: PastGeneration, how: str) -> str:
    return f"{_describe(place, how)}: hotreload rollback {place.number}"
