"""Takes new weights from a program: checks them, stages them and makes them live."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hotreload.checkpoint.check import check_checkpoint, findings
from hotreload.checkpoint.digests import Digests
from hotreload.checkpoint.findings import fault
from hotreload.checkpoint.fit import Policy
from hotreload.checkpoint.in_memory import InMemory, never_change
from hotreload.checkpoint.known_names import matches
from hotreload.core.engines.replica import Replica
from hotreload.core.ledger import PastGeneration
from hotreload.engine.options import RANDOM_WEIGHTS
from hotreload.engine.sglang import SglangEngine
from hotreload.engine.weights.leaf.from_arrays import InDoubt
from hotreload.errors import BadRequest, CheckpointRejected, NothingOfThatName, SourceUnavailable
from hotreload.facts.names import how_to_have
from hotreload.hot.answering_engine import check_text
from hotreload.hot.names import GivenWeights, Renamed
from hotreload.hot.staged import AsyncStagedWeights
from hotreload.hot.weight_changes import WeightChanges
from hotreload.threads import in_thread
from hotreload.types import Checkpoint, Generation, Served, TensorSpec


@dataclass
class GivenChecks:
    """The checks of one engine: new weights are compared with the model that it serves."""

    served: Served
    policy: Policy
    dtype: str
    """The dtype of the engine's start."""
    digests: Digests | None = None
    """The digests of downloaded files."""

    def against(self, tensors: Mapping[str, TensorSpec], digests: Digests) -> "GivenChecks":
        """Return checks against these tensors, with the digests of downloaded files."""
        return replace(self, served=replace(self.served, tensors=tensors), digests=digests)

    async def check(
        self,
        given: GivenWeights,
        name: str = "",
        *,
        complete: bool = False,
        is_unread: bool = False,
    ) -> Checkpoint:
        """Return the weights as a checkpoint of this name; CheckpointRejected lists their faults.

        Unless it must be `complete`, a mapping may be a part of the tensors. With `is_unread` only
        names, shapes and dtypes are checked.
        """
        check_text("name", name)
        held = held_by(given, is_unread=is_unread)
        check = partial(check_checkpoint, None, held, served=self.served, digests=self.digests)
        policy, what = self._policy_for(held, complete), f"a check of {held.name}"
        checkpoint = await in_thread(
            lambda cancel: check(policy=policy, cancel=cancel), leave_as=what
        )
        revision = replace(checkpoint.revision, label=name or held.name)
        return replace(checkpoint, revision=revision)

    async def fingerprint_of(
        self,
        given: GivenWeights,
        live_sums: Callable[[], Mapping[str, int]],
        *,
        complete: bool = False,
    ) -> str | None:
        """Return the fingerprint that these weights would have live; None if they would be cast.

        For a part of the tensors, `live_sums` is called for the sums of the others.
        """
        held = held_by(given)
        policy = self._policy_for(held, complete)
        beside = live_sums() if policy.missing == "live" else {}
        look = partial(findings, held, self.served, policy, compute_in=self.dtype, beside=beside)
        report = await in_thread(
            lambda cancel: look(cancel=cancel), leave_as=f"a look at {held.name}"
        )
        if report.findings:
            raise fault(report.findings)
        return report.fingerprint

    def _policy_for(self, held: Path | InMemory, complete: bool) -> Policy:
        """Return the policy; unless it must be complete, a mapping may leave tensors out."""
        if complete or not isinstance(held, InMemory):
            return self.policy
        served, names = self.served, set(held.names)
        if not any(self._is_taken(name) for name in names):
            raise BadRequest("the mapping has no tensor that the model takes: give one at least")
        left_out = served.tensors.keys() - names
        is_part = any(not matches(name, served.ignorable) for name in left_out)
        return replace(self.policy, missing="live") if is_part else self.policy

    def _is_taken(self, name: str) -> bool:
        """Return whether the checks look at a tensor of this name, if only to refuse it."""
        served = self.served
        if matches(name, served.ignorable):
            return False
        return name in served.tensors or not matches(name, self.policy.extra_tensors)


def held_by(given: GivenWeights, *, is_unread: bool = False) -> Path | InMemory:
    """Return the folder or arrays; SourceUnavailable for no folder, BadRequest for no path."""
    if isinstance(given, Mapping):
        called = given.called if isinstance(given, Renamed) else {}
        return InMemory(given, called=called, is_unread=is_unread)
    if not isinstance(given, str | Path):
        kind = type(given).__name__
        words = "weights are a checkpoint's folder, or a mapping of names to arrays"
        raise BadRequest(f"{words}, and this is a {kind}")
    folder = Path(given).absolute()
    if not folder.is_dir():
        words = "a checkpoint is one, with its weights"
        raise SourceUnavailable(f"{folder} is no folder: {words}{how_to_have(str(given))}")
    return folder


@dataclass
class NewWeights:
    """The new weights of one engine: checked here, then staged by its `WeightChanges`."""

    replica: Replica[SglangEngine]
    checks: GivenChecks
    changes: WeightChanges

    def __post_init__(self) -> None:
        self._updates = asyncio.Lock()

    async def stage(
        self, given: GivenWeights, name: str, since: int, *, complete: bool
    ) -> AsyncStagedWeights:
        """Check new weights and load them; Superseded if the rollbacks are more than `since`."""
        self.changes.check_free()
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
            if await self.replica.engine.weights.takes_unread(unread):
                return unread
        return None

    async def _stage_checked(self, checkpoint: Checkpoint, since: int) -> AsyncStagedWeights:
        if checkpoint.is_part:  # the live tensors complete it
            self._check_not_random()
            await self.replica.engine.weights.check_takes(checkpoint)
        return await self.changes.stage(checkpoint, since)

    async def update(
        self, given: GivenWeights, name: str, *, complete: bool, prove: bool
    ) -> Generation:
        """Stage new weights and flip to them; a second update waits until this one has ended."""
        since = self.changes.rollbacks
        async with (
            self._updates,
            await self.stage(given, name, since, complete=complete) as staged,
        ):
            return await staged.flip_since(since, prove=prove)

    async def bring_back(self, place: PastGeneration, since: int) -> Generation:
        """Make an earlier generation live again, from its folder."""
        self.changes.check_free()
        checkpoint = await self.from_files(place, "stage it again")
        async with await self.changes.stage(checkpoint, since) as staged:
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
        refill = partial(self.changes.refill, prove=prove)
        if (unread := await self._find_unread(given, name, complete=True)) is not None:
            with suppress(InDoubt):
                return await refill(unread)
        return await refill(await self.checks.check(given, name, complete=True))

    async def fingerprint_of(self, given: GivenWeights, *, complete: bool) -> str | None:
        """Return the fingerprint that these weights would have live; None if they would be cast."""
        return await self.checks.fingerprint_of(given, self._sums_that_stay, complete=complete)

    def _sums_that_stay(self) -> Mapping[str, int]:
        self._check_not_random()
        return self.replica.engine.weights.live_sums()

    def _check_not_random(self) -> None:
        if self.replica.live.revision == RANDOM_WEIGHTS:
            raise BadRequest(
                "nothing is live yet but random weights, and a part of the tensors leaves the "
                "others as they are: give all of them the first time"
            )
