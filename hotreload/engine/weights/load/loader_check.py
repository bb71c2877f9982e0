"""Compares our own loader with upstream's once, in the background of an engine that serves."""

import asyncio
import threading
from pathlib import Path

from hotreload.engine.weights.leaf.leaf_rules import Plan
from hotreload.engine.weights.leaf.leaves import Layout
from hotreload.engine.weights.load.loaders import Loaders
from hotreload.engine.weights.load.trust import mark_of, note
from hotreload.engine.weights.weights import Weights, sources_of
from hotreload.threads import in_thread
from hotreload.types import Checkpoint


class LoaderCheck:
    """The comparison of the two loaders, and what it found; on the event loop."""

    def __init__(self, loaders: Loaders, layout: Layout, plan: Plan, trust: Path | None) -> None:
        """`trust` is the file that notes the result for later starts."""
        self._loaders = loaders
        self._layout = layout
        self._plan = plan
        self._trust = trust
        self._running: asyncio.Task[None] | None = None
        self._is_distrusted = asyncio.Event()

    def begin(self, checkpoint: Checkpoint, live: Weights) -> asyncio.Task[None]:
        """Compare our own loader with the leaves that upstream's made of a checkpoint."""
        compare = self._compare(checkpoint, live)
        self._running = asyncio.create_task(compare, name="comparing the loaders")
        return self._running

    async def until_done(self) -> None:
        """Wait for the comparison: it holds live leaves, and one of its own."""
        if self._running is not None:
            await asyncio.wait({self._running})

    def note_distrust(self) -> None:
        """Wake `wait_for_distrust` if a load has found that our own loader makes other leaves."""
        if self._loaders.comparison.distrust:
            self._is_distrusted.set()

    async def wait_for_distrust(self) -> str:
        """Wait until our own loader makes other weights than upstream's; return which leaf."""
        await self._is_distrusted.wait()
        return self._loaders.comparison.distrust

    def drop_references(self) -> None:
        """Drop all references to the engine, when it ends."""
        self._running = None
        del self._loaders

    async def _compare(self, checkpoint: Checkpoint, live: Weights) -> None:
        # The list is a copy: these leaves may be released meanwhile.
        made = Weights(list(live.leaves), live.measured)
        await in_thread(lambda cancel: self._compare_and_note(checkpoint, made, cancel))
        self.note_distrust()
        if self._loaders.comparison.is_tried:
            live.sources = sources_of(checkpoint)

    def _compare_and_note(
        self, checkpoint: Checkpoint, made: Weights, cancel: threading.Event
    ) -> None:
        self._loaders.compare(checkpoint, made, cancel)
        if self._trust is not None and self._loaders.why_upstream is None:
            note(self._trust, mark_of(self._layout, made.leaves, self._plan, checkpoint))
