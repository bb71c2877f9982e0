"""The half of an attempt that is done on one engine: stage, drain, swap, probe, and back if bad.

Nothing that serves is touched before the gate is closed and empty, and whatever happens the gate
opens again (or is sealed) and one set of weights is live.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from hotreload.core.course import Course, StillWanted
from hotreload.core.ports import Engine
from hotreload.core.replica import Replica
from hotreload.core.rules import KeepPrevious, Rules
from hotreload.errors import CheckpointRejected, DrainTimedOut, EngineLost, ProbeFailed
from hotreload.events import GenerationLive
from hotreload.threads import uninterrupted
from hotreload.types import Checkpoint, Generation, Noise, Phase, Staged

ABORT_GRACE = 5.0
"""How long aborted generations may take to leave; one decode step is plenty."""

Commit = Callable[[Staged, Path | None], Generation]
"""Record in memory that these weights are live, and return the generation they are now."""
Remember = Callable[[], Awaitable[str | None]]
"""Make what is recorded survive a restart, or say why it does not."""


class Switch:
    """Makes other weights live on one engine, or leaves it as it was."""

    def __init__(
        self,
        replica: Replica[Engine],
        course: Course,
        wanted: StillWanted,
        *,
        commit: Commit,
        remember: Remember,
        rules: Rules,
    ) -> None:
        self._replica = replica
        self._engine = replica.engine
        self._course = course
        course.replica = replica.index
        self._wanted = wanted
        self._commit = commit
        self._remember = remember
        self._rules = rules
        self.is_staged = False
        """Whether only the swap is left to do, so that a newer wish waits."""

    async def to(self, checkpoint: Checkpoint) -> None:
        """Make a checked checkpoint live, unless its answers are bad."""
        async with self._staged(partial(self._engine.stage, checkpoint)) as spare:
            self._wanted.check()  # the last cheap exit
            self.is_staged = True
            async with self._drained():
                await uninterrupted(self._swap_probe_or_roll_back(spare, checkpoint.path))

    async def back(self) -> None:
        """Make the kept previous generation live again; the same way, without the loading."""
        async with self._unstowed() as spare, self._drained():
            await uninterrupted(self._swap_probe_or_roll_back(spare, None))

    async def to_noise(self, noise: Noise) -> None:
        """Make a copy of the live weights with noise on it live, whatever it answers.

        It shows that a swap moves the checksums. A probe would undo that as often as not, and
        what noisy weights answer tells nothing.
        """
        make = partial(self._engine.perturb, self._course.revision, noise)
        async with self._staged(make) as spare, self._drained():
            await uninterrupted(self._swap_unprobed(spare))

    @asynccontextmanager
    async def _staged(self, make: Callable[[], Awaitable[Staged]]) -> AsyncIterator["_Spare"]:
        """Hold new weights beside the live ones; what is spare at the end is put away."""
        async with self._course.phase(Phase.STAGING, self._rules.stage_timeout, "stage_timeout"):
            if self._rules.keep_previous is KeepPrevious.DEVICE:
                # Two sets on the device at most: the rollback slot makes room for the new one.
                await self._replica.forget_previous()
            staged = await self._wanted.during(make(), self._engine.release)
        self._replica.staged = staged
        self._replica.staged_bytes += staged.bytes
        async with self._held(_Spare(staged)) as spare:
            await self._course.reach("staged")
            yield spare

    @asynccontextmanager
    async def _unstowed(self) -> AsyncIterator["_Spare"]:
        previous = self._replica.previous
        assert previous is not None, "the reconciler asks only while one is kept"
        async with self._course.phase(Phase.STAGING):
            staged = await self._engine.unstow(previous)
        self._replica.previous = None
        async with self._held(_Spare(staged, was_live=True)) as spare:
            yield spare

    @asynccontextmanager
    async def _held(self, spare: "_Spare") -> AsyncIterator["_Spare"]:
        try:
            yield spare
        except EngineLost:
            spare.is_known = False  # which set is the spare one? The process ends with both
            raise
        finally:
            if spare.is_known:
                await uninterrupted(self._put_away(spare))

    async def _put_away(self, spare: "_Spare") -> None:
        """Keep what was live for a rollback, as the operator decided; free what never was."""
        self._replica.staged = None
        if not spare.was_live or self._rules.keep_previous is KeepPrevious.NONE:
            await self._engine.release(spare.weights)
            return
        await self._replica.forget_previous()
        if self._rules.keep_previous is KeepPrevious.HOST:
            await self._remember()  # the copy takes long; a crash in it must not lose what is live
            self._replica.previous = await self._engine.stow(spare.weights)
        else:
            self._replica.previous = spare.weights

    @asynccontextmanager
    async def _drained(self) -> AsyncIterator[None]:
        """Close the gate, wait until nobody is inside, and open it again whatever happens."""
        gate, rules = self._replica.gate, self._rules
        async with self._replica.alone:
            gate.hold()
            try:
                async with self._course.phase(Phase.DRAINING):
                    await self._wanted.during(
                        drain(self._replica, rules.drain_timeout, rules.abort_on_drain_timeout)
                    )
                self._wanted.check()  # it may have changed as the last request left
                self._wanted.may_give_up = False
                yield
            except EngineLost as lost:
                gate.seal(str(lost), code=lost.code)  # first, or held requests run on who knows
                raise
            finally:
                self._course.pause_seconds = self._replica.open()
                if self._course.generation is not None:
                    live = GenerationLive(self._course.generation, self._replica.index)
                    self._course.publish(live)

    async def _swap_probe_or_roll_back(self, spare: "_Spare", path: Path | None) -> None:
        """The part that no cancel interrupts: it ends with one generation live, and recorded."""
        fresh = spare.weights
        old = await self._swap(fresh)
        try:
            await self._course.reach("swapped")
            await self._probe()
        except EngineLost:
            raise
        except Exception as bad:  # a probe that breaks in any way is a bad answer
            spare.weights = await self._roll_back(old)
            self._course.verdict = _as_probe_failure(bad)
            raise self._course.verdict from bad
        await self._go_live(spare, old, path)

    async def _swap_unprobed(self, spare: "_Spare") -> None:
        old = await self._swap(spare.weights)
        await self._go_live(spare, old, None)

    async def _swap(self, fresh: Staged) -> Staged:
        async with self._course.phase(Phase.SWAPPING):
            old = await self._engine.exchange(fresh)
            # A probe asks a few prompts: weights that passed it may have made NaN of others.
            await self._scrub()
            return old

    async def _go_live(self, spare: "_Spare", old: Staged, path: Path | None) -> None:
        fresh = spare.weights
        spare.weights, spare.was_live = old, True
        self._course.fingerprints = (old.fingerprint, fresh.fingerprint)
        self._course.generation = self._replica.live = self._commit(fresh, path)
        await self._course.reach("committed")

    async def _probe(self) -> None:
        try:
            async with (
                asyncio.timeout(self._rules.probe_timeout),
                self._course.phase(Phase.PROBING),
            ):
                await self._engine.probe()
        except TimeoutError:
            raise ProbeFailed(
                f"no answer to the probe within {self._rules.probe_timeout:g} s "
                "([reload] probe_timeout)"
            ) from None

    async def _roll_back(self, old: Staged) -> Staged:
        self._course.rolled_back = True
        async with self._course.phase(Phase.ROLLING_BACK):
            try:
                failed = await self._engine.exchange(old)
            except Exception as broken:
                raise EngineLost(f"the rollback failed: {broken}") from broken
            await self._scrub()
            return failed

    async def _scrub(self) -> None:
        """Old leaves alone are no rollback: NaN in the KV pool would poison every later answer."""
        try:
            await self._engine.scrub()
        except Exception as broken:
            raise EngineLost(f"the KV pool could not be scrubbed: {broken}") from broken


async def drain(replica: Replica[Engine], within: float, abort: bool) -> None:
    """Wait until nobody is inside the closed gate; those who stay longer are aborted, or win."""
    try:
        await replica.gate.drained(within)
    except DrainTimedOut:
        if not abort:
            raise
        await replica.engine.abort()
        await replica.gate.drained(ABORT_GRACE)


@dataclass(slots=True)
class _Spare:
    """The weights that are not live now, and whether they ever were."""

    weights: Staged
    was_live: bool = False
    is_known: bool = True


def _as_probe_failure(bad: Exception) -> CheckpointRejected:
    if isinstance(bad, CheckpointRejected):
        return bad
    return ProbeFailed(f"the probe broke: {type(bad).__name__}: {bad}")
