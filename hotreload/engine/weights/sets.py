"""Makes and frees whole sets of weights beside the live one."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hotreload.engine.weights import staging
from hotreload.engine.weights.headroom import size_of, why_one_set
from hotreload.engine.weights.leaves import Layout, layout_of, measure
from hotreload.engine.weights.noise import perturb
from hotreload.engine.weights.room import Room
from hotreload.engine.weights.shadow import record_plan
from hotreload.engine.weights.staging import Weights
from hotreload.threads import in_thread
from hotreload.types import Checkpoint, HowFar, Noise, Revision, Staged


class Sets:
    """Knows how the sets of one model look; which of them answers, it is told at each call."""

    def __init__(
        self, model_runner: Any, *, spool: Path, max_drift: float | None, memory: str = "double"
    ) -> None:
        self.layout = layout_of(model_runner.model)
        self.plan = record_plan(model_runner)
        self.bytes = 0
        """Of one set; known when the first was adopted."""
        self.why_one_set: str | None = None
        """Why one set at a time is on the device, and spare ones wait on the host; None where
        they lie beside the live one."""
        self.staging: HowFar | None = None
        """How far the checkpoint is that is being staged."""
        self._runner = model_runner
        self._spool = spool
        self._max_drift = max_drift
        self._memory = memory
        self._beside: Sequence[Any] = ()
        self._room = Room()

    def adopt(self, leaves: list[Any], revision: Revision) -> Staged:
        """Make one of our sets of what upstream loaded, copied into memory of our own.

        Upstream's loader maps the files: before the copy, a rewritten file changes live weights.
        """
        self.bytes = size_of(self.layout.named(leaves))
        staging.take_over(leaves, self.layout)
        return self._as_staged(revision, Weights(leaves, measure(self.layout.named(leaves))))

    def decide(self, live: Staged, beside: Sequence[Any] = ()) -> None:
        """Decide where spare sets wait; `beside` describes what must fit beside one that is staged.

        Once, before any is made: a set that waits on one side would not be looked for on the other.
        """
        alive = self.layout.named(live.weights.leaves).values()
        self.why_one_set = why_one_set(self._memory, alive, beside)
        self._beside = () if self.why_one_set else beside

    async def stage(self, checkpoint: Checkpoint, live: Staged) -> Staged:
        """Load beside the live weights; a cancelled or failed call leaves nothing behind."""
        work = partial(
            staging.stage,
            checkpoint,
            model_runner=self._runner,
            layout=self.layout,
            live=live.weights,
            plan=self.plan,
            spool=self._spool,
            max_drift=self._max_drift,
            beside=self._beside,
        )
        if self.why_one_set:
            # Upstream's loader knows no other way than beside the live ones: where there is no
            # room for that, its error says so.
            work = partial(_then_stowed, work, self.layout)
        self.staging = HowFar(0, checkpoint.bytes)
        try:
            return await self._staged(checkpoint.revision, work)
        finally:
            self.staging = None

    async def perturb(self, revision: Revision, noise: Noise, live: Staged) -> Staged:
        """Copy the live weights, with noise on some leaves; it fails as `stage` does."""
        to_host = self.why_one_set is not None
        work = partial(perturb, noise, layout=self.layout, live=live.weights, to_host=to_host)
        return await self._staged(revision, work)

    async def stow(self, staged: Staged) -> Staged:
        """Move spare weights to host memory; what is there already stays as it is."""
        if not staged.weights.leaves:
            return staged
        move = partial(staging.stow, staged.weights, self.layout)
        weights = await in_thread(lambda cancel: move(), discard=Weights.drop)
        return replace(staged, weights=weights)

    async def unstow(self, staged: Staged, live: Staged) -> Staged:
        """Bring stowed weights back; what is where spare weights wait already stays as it is."""
        if staged.weights.leaves or self.why_one_set:
            return staged
        back = partial(staging.unstow, staged.weights, self.layout, live.weights.leaves)
        name = f"the way back to {staged.revision}"
        return replace(staged, weights=await self._room.make(lambda cancel: back(), name=name))

    async def release(self, staged: Staged) -> None:
        """Free spare weights, off the loop."""
        assert staged.weights.lane is None, "weights that answer cannot be freed"
        await asyncio.to_thread(staged.weights.drop)

    async def _staged(self, revision: Revision, work: Callable[..., Weights]) -> Staged:
        name = f"the loading of {revision}"
        made = await self._room.make(lambda cancel: work(cancel=cancel), name=name, leave=True)
        return self._as_staged(revision, made)

    def _as_staged(self, revision: Revision, weights: Weights) -> Staged:
        measured = weights.measured
        return Staged(revision, weights, measured.fingerprint, measured.checksums, self.bytes)


def _then_stowed(make: Callable[..., Weights], layout: Layout, cancel: threading.Event) -> Weights:
    return staging.stow(make(cancel=cancel), layout)
