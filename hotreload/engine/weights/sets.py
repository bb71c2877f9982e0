"""Makes and frees whole sets of weights beside the live one."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hotreload.engine.weights import staging
from hotreload.engine.weights.headroom import size_of
from hotreload.engine.weights.leaves import layout_of, measure
from hotreload.engine.weights.noise import perturb
from hotreload.engine.weights.room import Room
from hotreload.engine.weights.shadow import record_plan
from hotreload.engine.weights.staging import Weights
from hotreload.threads import in_thread
from hotreload.types import Checkpoint, HowFar, Noise, Revision, Staged


class Sets:
    """Knows how the sets of one model look; which of them answers, it is told at each call."""

    def __init__(self, model_runner: Any, *, spool: Path, max_drift: float | None) -> None:
        self.layout = layout_of(model_runner.model)
        self.plan = record_plan(model_runner)
        self.bytes = 0
        """Of one set; known when the first was adopted."""
        self.beside = 0
        """Bytes that must be free beside a set that is staged."""
        self.staging: HowFar | None = None
        """How far the checkpoint is that is being staged."""
        self._runner = model_runner
        self._spool = spool
        self._max_drift = max_drift
        self._room = Room()

    def adopt(self, leaves: list[Any], revision: Revision) -> Staged:
        """Make one of our sets of what upstream loaded, copied into memory of our own.

        Upstream's loader maps the files: before the copy, a rewritten file changes live weights.
        """
        self.bytes = size_of(self.layout.named(leaves))
        staging.take_over(leaves, self.layout)
        return self._as_staged(revision, Weights(leaves, measure(self.layout.named(leaves))))

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
            beside=self.beside,
        )
        self.staging = HowFar(0, checkpoint.bytes)
        try:
            return await self._staged(checkpoint.revision, work)
        finally:
            self.staging = None

    async def perturb(self, revision: Revision, noise: Noise, live: Staged) -> Staged:
        """Copy the live weights, with noise on some leaves; it fails as `stage` does."""
        work = partial(perturb, noise, layout=self.layout, live=live.weights)
        return await self._staged(revision, work)

    async def stow(self, staged: Staged) -> Staged:
        """Move spare weights to host memory."""
        move = partial(staging.stow, staged.weights, self.layout)
        weights = await in_thread(lambda cancel: move(), discard=Weights.drop)
        return replace(staged, weights=weights)

    async def unstow(self, staged: Staged, live: Staged) -> Staged:
        """Bring stowed weights back; what is on the device already stays as it is."""
        if staged.weights.leaves:
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
