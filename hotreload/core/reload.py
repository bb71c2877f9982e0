"""One attempt, top to bottom: fetch, validate, stage, drain, swap, probe, and back if bad.

Read `Reload.run`. Nothing that serves is touched before the gate is closed and empty, and
whatever happens the gate opens again (or is sealed) and one set of weights is live.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

from hotreload import failpoints
from hotreload.core.gate import Gate
from hotreload.core.ports import Engine, Source
from hotreload.core.threads import checked_at, deadline, outlast, uninterrupted
from hotreload.errors import (
    CheckpointRejected,
    DrainTimedOut,
    EngineLost,
    ProbeFailed,
    Superseded,
)
from hotreload.events import GenerationLive, PhaseEntered, Publish
from hotreload.types import Checkpoint, Generation, Noise, Phase, Revision, Staged

ABORT_GRACE = 5.0
"""How long aborted generations may take to leave; one decode step is plenty."""


class KeepPrevious(StrEnum):
    """Where the generation before waits for a rollback."""

    DEVICE = "device"
    HOST = "host"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Rules:
    """What the operator decided about attempts."""

    fetch_timeout: float = 3600.0
    validate_timeout: float = 1800.0
    stage_timeout: float = 1800.0
    drain_timeout: float = 30.0
    longest_drain: float = 600.0
    """So long a request may run at most: whoever waits that long has drained."""
    abort_on_drain_timeout: bool = False
    probe_timeout: float = 30.0
    keep_previous: KeepPrevious = KeepPrevious.DEVICE


@dataclass(slots=True)
class Replica:
    """One engine, the gate before it, what answers, what answered before, what is to answer."""

    engine: Engine
    gate: Gate
    live: Generation
    previous: Staged | None = None
    staged: Staged | None = None
    staged_bytes: int = 0
    """All bytes ever staged here."""
    is_probed: bool = True
    """Whether what is live answered the probe before it answered anybody else."""


Validate = Callable[[Revision, Path], Awaitable[Checkpoint]]
Commit = Callable[[Staged, Path | None], Generation]
"""Record in memory that these weights are live, and return the generation they are now."""
Remember = Callable[[], Awaitable[None]]
"""Make what is recorded survive a restart."""


class Reload:
    """One attempt to make other weights live; made anew for each."""

    def __init__(
        self,
        replica: Replica,
        revision: Revision,
        *,
        source: Source,
        validate: Validate,
        commit: Commit,
        remember: Remember,
        publish: Publish,
        news: asyncio.Event,
        rules: Rules,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.revision = revision
        self.generation: Generation | None = None
        self.phases: dict[Phase, float] = {}
        self.pause_seconds = 0.0
        self.rolled_back = False
        self.verdict: CheckpointRejected | None = None
        """What the probe said against it; it holds also when a cancel comes before the end."""
        self.fingerprints: tuple[str, str] | None = None
        self._replica = replica
        self._engine = replica.engine
        self._source = source
        self._validate_files = validate
        self._commit = commit
        self._remember = remember
        self._publish = publish
        self._news = news
        self._still_wanted: Callable[[], bool] = lambda: True
        self.may_give_up = False
        """Whether it still asks if it is wanted; what answers was not touched then."""
        self._rules = rules
        self._clock = clock

    async def run(self, still_wanted: Callable[[], bool]) -> None:
        """Make the revision live, or raise why not; then what answered before answers still.

        `news` is set whenever `still_wanted` may say something else than before.
        """
        self._still_wanted, self.may_give_up = still_wanted, True
        path = await self._fetch()
        checkpoint = await self._validate(path)
        async with self._staged(partial(self._engine.stage, checkpoint)) as spare:
            self._check_wanted()  # the last cheap exit
            self.may_give_up = False
            async with self._drained():
                await uninterrupted(self._swap_probe_or_roll_back(spare, path))

    async def run_back(self) -> None:
        """Make the kept previous generation live again; the same way, without the loading."""
        async with self._unstowed() as spare, self._drained():
            await uninterrupted(self._swap_probe_or_roll_back(spare, None, scrub=True))

    async def run_noise(self, noise: Noise) -> None:
        """Make a copy of the live weights with noise on it live, whatever it answers.

        It shows that a swap moves the checksums. A probe would undo that as often as not, and
        what noisy weights answer tells nothing.
        """
        make = partial(self._engine.perturb, self.revision, noise)
        async with self._staged(make) as spare, self._drained():
            await uninterrupted(self._swap_unprobed(spare))

    def keeps(self, fingerprint: str) -> bool:
        """Whether weights of this fingerprint are kept for a rollback now."""
        previous = self._replica.previous
        return previous is not None and previous.fingerprint == fingerprint

    async def _fetch(self) -> Path:
        async with self._phase(Phase.FETCHING, self._rules.fetch_timeout, "fetch_timeout"):
            return await self._while_wanted(self._fetch_alone())

    async def _fetch_alone(self) -> Path:
        await outlast()
        return await self._source.fetch(self.revision)

    async def _validate(self, path: Path) -> Checkpoint:
        async with self._phase(Phase.VALIDATING, self._rules.validate_timeout, "validate_timeout"):
            return await self._while_wanted(self._validate_files(self.revision, path))

    async def _while_wanted[T](
        self, work: Awaitable[T], discard: Callable[[T], Awaitable[None]] | None = None
    ) -> T:
        """Give long work up when something else is wanted: nothing that serves was touched."""
        return await checked_at(self._news, self._check_wanted, work, discard)

    def _check_wanted(self) -> None:
        if not self._still_wanted():
            why = "another is wanted now, or a pin holds what is live"
            raise Superseded(f"{self.revision} was given up: {why}")

    @asynccontextmanager
    async def _staged(self, make: Callable[[], Awaitable[Staged]]) -> AsyncIterator["_Spare"]:
        """Hold new weights beside the live ones; what is spare at the end is put away."""
        async with self._phase(Phase.STAGING, self._rules.stage_timeout, "stage_timeout"):
            if self._rules.keep_previous is KeepPrevious.DEVICE:
                # Two sets on the device at most: the rollback slot makes room for the new one.
                await self._forget_previous()
            staged = await self._while_wanted(make(), self._engine.release)
        self._replica.staged = staged
        self._replica.staged_bytes += staged.bytes
        async with self._held(_Spare(staged)) as spare:
            await failpoints.reach("staged")
            yield spare

    @asynccontextmanager
    async def _unstowed(self) -> AsyncIterator["_Spare"]:
        previous = self._replica.previous
        assert previous is not None, "the reconciler asks only while one is kept"
        async with self._phase(Phase.STAGING):
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
        await self._forget_previous()
        if self._rules.keep_previous is KeepPrevious.HOST:
            await self._remember()  # the copy takes long; a crash in it must not lose what is live
            self._replica.previous = await self._engine.stow(spare.weights)
        else:
            self._replica.previous = spare.weights

    async def _forget_previous(self) -> None:
        previous, self._replica.previous = self._replica.previous, None
        if previous is not None:
            await self._engine.release(previous)

    @asynccontextmanager
    async def _drained(self) -> AsyncIterator[None]:
        """Close the gate, wait until nobody is inside, and open it again whatever happens."""
        gate = self._replica.gate
        gate.hold()
        try:
            async with self._phase(Phase.DRAINING):
                await self._drain()
            yield
        except EngineLost as lost:
            gate.seal(str(lost), code=lost.code)  # first, or held requests run on who knows what
            raise
        finally:
            self.pause_seconds = gate.open(self._replica.live)
            if self.generation is not None:
                self._publish(GenerationLive(self.generation))

    async def _drain(self) -> None:
        gate, rules = self._replica.gate, self._rules
        try:
            await gate.drained(rules.drain_timeout)
        except DrainTimedOut:
            if not rules.abort_on_drain_timeout:
                raise
            await self._engine.abort()
            await gate.drained(ABORT_GRACE)

    async def _swap_probe_or_roll_back(
        self, spare: "_Spare", path: Path | None, *, scrub: bool = False
    ) -> None:
        """The part that no cancel interrupts: it ends with one generation live, and recorded."""
        fresh = spare.weights
        old = await self._swap(fresh, scrub)
        try:
            await failpoints.reach("swapped")
            await self._probe()
        except EngineLost:
            raise
        except Exception as bad:  # a probe that breaks in any way is a bad answer
            spare.weights = await self._roll_back(old)
            self.verdict = _as_probe_failure(bad)
            raise self.verdict from bad
        await self._go_live(spare, old, path, is_probed=True)

    async def _swap_unprobed(self, spare: "_Spare") -> None:
        old = await self._swap(spare.weights, False)
        await self._go_live(spare, old, None, is_probed=False)

    async def _swap(self, fresh: Staged, scrub: bool) -> Staged:
        async with self._phase(Phase.SWAPPING):
            old = await self._engine.exchange(fresh)
            # What nobody probed may have left NaN in the KV pool with every answer it gave.
            if scrub or not self._replica.is_probed:
                await self._scrub()
            return old

    async def _go_live(
        self, spare: "_Spare", old: Staged, path: Path | None, *, is_probed: bool
    ) -> None:
        fresh = spare.weights
        spare.weights, spare.was_live = old, True
        self.fingerprints = (old.fingerprint, fresh.fingerprint)
        self._replica.is_probed = is_probed
        self.generation = self._replica.live = self._commit(fresh, path)
        await failpoints.reach("committed")

    async def _probe(self) -> None:
        try:
            async with asyncio.timeout(self._rules.probe_timeout), self._phase(Phase.PROBING):
                await self._engine.probe()
        except TimeoutError:
            raise ProbeFailed(
                f"no answer to the probe within {self._rules.probe_timeout:g} s "
                "([reload] probe_timeout)"
            ) from None

    async def _roll_back(self, old: Staged) -> Staged:
        self.rolled_back = True
        async with self._phase(Phase.ROLLING_BACK):
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

    @asynccontextmanager
    async def _phase(
        self, phase: Phase, within: float | None = None, setting: str = ""
    ) -> AsyncIterator[None]:
        self._publish(PhaseEntered(self.revision, phase))
        started = self._clock()
        try:
            async with deadline(within, f"{phase} {self.revision}", f"[reload] {setting}"):
                await failpoints.reach(phase)
                yield
        finally:
            self.phases[phase] = self.phases.get(phase, 0.0) + self._clock() - started


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
