"""Takes new weights from a program: checks them, stages them and makes them live."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

from hotreload.checkpoint.arrays.in_memory import never_change
from hotreload.core.engines.replica import Replica
from hotreload.core.ledger import PastGeneration
from hotreload.engine.options import RANDOM_WEIGHTS
from hotreload.engine.sglang import SglangEngine
from hotreload.engine.weights.leaf.from_arrays import InDoubt
from hotreload.errors import BadRequest, CheckpointRejected, NothingOfThatName
from hotreload.hot.given_weights import GivenChecks, GivenWeights
from hotreload.hot.staged import AsyncStagedWeights
from hotreload.hot.weight_changes import WeightChanges
from hotreload.types import Checkpoint, Generation


class NewWeights:
    """The new weights of one engine: checked here, then staged by its `WeightChanges`."""

    def __init__(
        self, replica: Replica[SglangEngine], checks: GivenChecks, changes: WeightChanges
    ) -> None:
        self.checks = checks
        self._replica = replica
        self._changes = changes
        self._updates = asyncio.Lock()

    async def stage(
        self, given: GivenWeights, name: str, since: int, *, complete: bool
    ) -> AsyncStagedWeights:
        """Check new weights and load them; Superseded if the rollbacks are more than `since`."""
        self._changes.check_free()
        unread = await self._find_unread(given, name, complete=complete)
        if unread is not None:
            with suppress(InDoubt):
                return await self._stage_checked(unread, since)
        checkpoint = await self.checks.check(given, name, complete=complete)
        return await self._stage_checked(checkpoint, since)

    async def _find_unread(
        self, given: GivenWeights, name: str, *, complete: bool
    ) -> Checkpoint | None:
        """Return arrays as a checkpoint whose values only the engine reads; else None.

        None also for arrays that cannot pass: `check` then reads them, and lists all their faults.
        """
        if not isinstance(given, Mapping) or not never_change(given):
            return None
        with suppress(CheckpointRejected):
            unread = await self.checks.check(given, name, complete=complete, is_unread=True)
            if await self._replica.engine.weights.takes_unread(unread):
                return unread
        return None

    async def _stage_checked(self, checkpoint: Checkpoint, since: int) -> AsyncStagedWeights:
        await self._check_can_stay(checkpoint)
        return await self._changes.stage(checkpoint, since)

    async def update(
        self, given: GivenWeights, name: str, *, complete: bool, prove: bool
    ) -> Generation:
        """Stage new weights and flip to them; a second update waits until this one has ended."""
        since = self._changes.rollbacks
        async with (
            self._updates,
            await self.stage(given, name, since, complete=complete) as staged,
        ):
            return await staged.flip_since(since, prove=prove)

    async def bring_back(self, place: PastGeneration, since: int) -> Generation:
        """Make an earlier generation live again, from its folder."""
        self._changes.check_free()
        checkpoint = await self.from_files(place, "stage it again")
        async with await self._changes.stage(checkpoint, since) as staged:
            return await staged.flip_since(since)

    async def from_files(self, place: PastGeneration, otherwise: str) -> Checkpoint:
        """Return an earlier generation's weights, checked again.

        NothingOfThatName if it has no folder, or other bytes in it now; `otherwise` is the hint.
        """
        gone = f"generation {place.number} is no longer kept in memory"
        if not place.path:
            raise NothingOfThatName(f"{gone}, and has no files: {otherwise}")
        checkpoint = await self.checks.check(place.path, place.revision.label)
        if checkpoint.revision != place.revision:
            raise NothingOfThatName(f"{gone}, and {place.path} holds other bytes now")
        return checkpoint

    async def refill(self, given: GivenWeights, name: str, *, prove: bool) -> Generation:
        """Check a complete set of new weights and load it into an engine that has none."""
        refill = partial(self._changes.refill, prove=prove)
        if (unread := await self._find_unread(given, name, complete=True)) is not None:
            with suppress(InDoubt):
                return await refill(unread)
        return await refill(await self.checks.check(given, name, complete=True))

    async def fingerprint_of(self, given: GivenWeights, *, complete: bool) -> str | None:
        """Return the fingerprint that these weights would have live; None if they would be cast."""
        return await self.checks.fingerprint_of(given, self._sums_that_stay, complete=complete)

    def _sums_that_stay(self) -> Mapping[str, int]:
        self._check_not_random()
        return self._replica.engine.weights.live_sums()

    async def _check_can_stay(self, checkpoint: Checkpoint) -> None:
        """BadRequest for a part of the tensors if the live ones cannot complete it."""
        if checkpoint.is_part:
            self._check_not_random()
            await self._replica.engine.weights.check_takes(checkpoint)

    def _check_not_random(self) -> None:
        if self._replica.live.revision == RANDOM_WEIGHTS:
            raise BadRequest(
                "nothing is live yet but random weights, and a part of the tensors leaves the "
                "others as they are: give all of them the first time"
            )
