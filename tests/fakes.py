"""Fakes for the core's two ports. They pass the same contract tests as the real things.

A fault is put before a step by name: an exception is raised there, HANG waits for ever.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from hotreload.errors import EngineLost, ProbeFailed, SourceUnavailable
from hotreload.types import Checkpoint, Noise, Revision, Staged

HANG = object()


@dataclass(eq=False)
class FakeWeights:
    says: str
    is_bad: bool = False
    is_on_device: bool = True


class Steps:
    """Records which steps were entered, and breaks those it is told to break."""

    def __init__(self) -> None:
        self.faults: dict[str, object] = {}
        self.entered: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.released: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def pass_through(self, step: str) -> None:
        self.entered[step].set()
        await asyncio.sleep(0)
        fault = self.faults.get(step)
        if fault is HANG:
            await self.released[step].wait()
        elif isinstance(fault, list):
            if fault:
                raise fault.pop(0)
        elif isinstance(fault, BaseException):
            raise fault


class FakeEngine:
    """Weights are a sentence; bad ones poison the cache of every later answer until a scrub."""

    def __init__(self, steps: Steps, live: Revision) -> None:
        self.steps = steps
        self.live = self._staged(live, FakeWeights(live.id))
        self.spares: list[Staged] = []
        self.cache: set[str] = {"clean"}
        self.scrubs = 0
        self.aborts = 0
        self.on_abort: list[asyncio.Event] = []

    @property
    def sets_held(self) -> int:
        return 1 + len(self.spares)

    async def stage(self, checkpoint: Checkpoint) -> Staged:
        await self.steps.pass_through("stage")
        bad = "bad" in checkpoint.revision.label
        staged = self._staged(checkpoint.revision, FakeWeights(checkpoint.revision.id, bad))
        self.spares.append(staged)
        return staged

    async def perturb(self, revision: Revision, noise: Noise) -> Staged:
        await self.steps.pass_through("perturb")
        live, is_loud = self.live.weights, noise.scale >= 1
        says = f"{live.says} with {noise}"
        staged = self._staged(revision, FakeWeights(says, live.is_bad or is_loud))
        self.spares.append(staged)
        return staged

    async def exchange(self, staged: Staged) -> Staged:
        await self.steps.pass_through("exchange")
        assert staged in self.spares, "only spare weights can be made live"
        assert staged.weights.is_on_device, "stowed weights must be unstowed first"
        self.spares.remove(staged)
        old, self.live = self.live, staged
        self.spares.append(old)
        return old

    async def scrub(self) -> None:
        await self.steps.pass_through("scrub")
        self.scrubs += 1
        self.cache = {"clean"}

    async def probe(self) -> None:
        await self.steps.pass_through("probe")
        answer = self.answer()
        if "nonsense" in answer:
            raise ProbeFailed(f"the probe got {answer!r}")

    async def abort(self) -> None:
        await self.steps.pass_through("abort")
        self.aborts += 1
        for leave in self.on_abort:
            leave.set()

    async def stow(self, staged: Staged) -> Staged:
        await self.steps.pass_through("stow")
        staged.weights.is_on_device = False
        return staged

    async def unstow(self, staged: Staged) -> Staged:
        await self.steps.pass_through("unstow")
        staged.weights.is_on_device = True
        return staged

    async def release(self, staged: Staged) -> None:
        await self.steps.pass_through("release")
        self.spares.remove(staged)

    def answer(self) -> str:
        if self.live.weights.is_bad:
            self.cache.add("nonsense")
        return f"{self.live.weights.says} {' '.join(sorted(self.cache))}"

    def _staged(self, revision: Revision, weights: FakeWeights) -> Staged:
        leaves = {"leaf": hash(weights.says) % 97}
        return Staged(revision, weights, f"fp-{weights.says}", leaves, 10)


class FakeSource:
    """Wishes what the test publishes."""

    def __init__(self, steps: Steps, folder: Path) -> None:
        self.steps = steps
        self.folder = folder
        self.known: dict[str, Revision] = {}
        self._wishes: asyncio.Queue[Revision] = asyncio.Queue()

    def publish(self, revision: Revision) -> None:
        self.known[revision.label] = revision
        self._wishes.put_nowait(revision)

    async def wanted(self) -> AsyncIterator[Revision]:
        while True:
            yield await self._wishes.get()

    async def fetch(self, revision: Revision) -> Path:
        await self.steps.pass_through("fetch")
        if revision not in self.known.values():
            raise SourceUnavailable(f"{revision} is not here")
        return self.folder / revision.label

    async def resolve(self, name: str | None) -> Revision:
        for label, revision in reversed(self.known.items()):
            if name is None or Path(name).name == label:
                return revision
        raise SourceUnavailable(f"{name} is not here")


def lost(why: str = "the scheduler thread died") -> EngineLost:
    return EngineLost(why)
