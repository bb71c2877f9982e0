"""The engines behind their gates, and the weights each holds: live, fading, kept, staged."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from hotreload.core.ledger import PastGeneration
from hotreload.core.ports import Engine
from hotreload.core.rules import KeepPrevious
from hotreload.core.way_in.gate import Bell, Gate
from hotreload.errors import EngineLost
from hotreload.events import ModeChosen
from hotreload.types import Generation, Lease, Mode, Reason, Staged


def choose_mode(wished: Mode, engine: Engine) -> ModeChosen:
    """Choose how this life swaps weights: as the settings say, if the engine can."""
    why_not = engine.switch.cannot_overlap if wished is Mode.OVERLAP else None
    return ModeChosen(Mode.DRAIN if why_not else wished, why_not)


@dataclass(eq=False, slots=True)
class FadingWeights:
    """Weights that were live, and still answer the requests that began under them."""

    weights: Staged
    generations: tuple[Generation, ...]
    """Their generations, oldest first; a rollback to them while they fade adds one."""
    since: float
    """Monotonic time when other weights went live."""
    is_outlived: bool = False
    """True when younger weights ended before them: a rollback goes to those."""


class Replica[E: Engine]:
    """One engine, its gate, and its weights: live, older ones that answer, and staged ones.

    The core uses the engine's port alone, and takes a replica of any engine.
    """

    def __init__(self, engine: E, gate: Gate[E], live: Generation, mode: Mode = Mode.DRAIN) -> None:
        # Read through a property: could it be set, a Replica[E] would be no Replica[Engine].
        self._engine = engine
        self.gate: Gate[Any] = gate
        """Any work on the engine closes it; only the replica opens it again."""
        self.index = gate.replica
        """Its index among the daemon's engines, which events carry."""
        self.mode = mode
        """The mode in which new weights take over from the live ones."""
        self.live = live
        self.fading: list[FadingWeights] = []
        """Older weights that still answer, oldest first; always empty where a swap drains."""
        self.previous: Staged | None = None
        """Weights kept in memory for a rollback; they answer no request."""
        self.staged: Staged | None = None
        self.staged_bytes = 0
        """Count of all bytes ever read (or copied) for weights staged here."""
        self.lock = asyncio.Lock()
        """Held while weights that answer or are kept change, or caches are cleaned after them."""
        self._ended = Bell()
        self._loss: EngineLost | None = None
        self._is_lost = asyncio.Event()
        self._was_live_as: tuple[Generation, ...] = ()
        """Other generations of the live weights, if a rollback found them still answering."""

    @property
    def engine(self) -> E:
        """The engine behind the gate."""
        return self._engine

    def open(self) -> float:
        """Let requests in to the live weights; return for how long arrivals were held."""
        return self.gate.open(self._lease())

    def _lease(self) -> Lease[E]:
        weights = self._engine.weights.live if self.mode is Mode.OVERLAP else None
        return Lease(self.live, self._engine, weights)

    def switch_to(self, live: Generation, previous: Staged) -> None:
        """Answer new requests by this generation, after the engine's flip to it.

        Requests inside go on under the old weights, which fade.
        """
        again = next(
            (each for each in self.fading if each.weights is self._engine.weights.live), None
        )
        faded = FadingWeights(previous, (*self._was_live_as, self.live), time.monotonic())
        self._was_live_as = again.generations if again else ()
        self.fading = [*(each for each in self.fading if each is not again), faded]
        if self.previous is self._engine.weights.live:
            self.previous = None
        self.live = live
        self.gate.change(self._lease())

    def rename_live(self, live: Generation) -> None:
        """Give the daemon's live generation a new version, even if this engine is changing."""
        if self.live == live:
            self.live = live
        self.gate.rename(live)

    @property
    def drained_weights(self) -> FadingWeights | None:
        """A fading set of weights that no request or conversation needs any more; None without."""
        unneeded = (each for each in self.fading if not self.gate.is_needed(each.weights))
        return next(unneeded, None)

    def end(self, over: FadingWeights) -> None:
        """Drop weights from the fading ones: they are spare, or freed."""
        self.fading.remove(over)
        self._ended.ring()

    async def fewer_fade(self, than: int) -> None:
        """Wait until fewer than this number of sets answer older requests."""
        while len(self.fading) >= than:
            await self._ended.wait()

    def find_kept(self, place: PastGeneration) -> Staged | None:
        """Find this generation's weights, if they are kept in memory or answer still.

        Equal weights of another revision do not count: its name would be shown as live.
        """
        held = [each.weights for each in self.fading]
        held += [self.previous] if self.previous is not None else []
        of_it = (each for each in held if _name(each) == (place.revision, place.fingerprint))
        return next(of_it, None)

    def keeps(self, place: PastGeneration) -> bool:
        """Return True if a rollback to this generation needs no loading now."""
        return self.find_kept(place) is not None

    async def put_away(self, spare: Staged, keep: KeepPrevious) -> None:
        """Keep weights that were live for a rollback, if the settings say so, or free them."""
        if keep is KeepPrevious.NONE:
            await self._engine.weights.release(spare)
            return
        await self.forget_previous()
        self.previous = (
            await self._engine.weights.stow(spare) if keep is KeepPrevious.HOST else spare
        )

    async def forget_previous(self) -> None:
        """Free the weights kept for a rollback."""
        previous, self.previous = self.previous, None
        if previous is not None:
            await self._engine.weights.release(previous)

    def drop_spares(self) -> None:
        """Drop all weights but the live ones, which end with the engine.

        The engine is not called: it may be lost, or closed already.
        """
        spare = [self.previous, self.staged, *(each.weights for each in self.fading)]
        self.previous = self.staged = None
        for faded in [*self.fading]:
            self.end(faded)
        for each in spare:
            if each is not None:
                each.weights.drop()

    def lose(self, why: EngineLost) -> None:
        """Seal the gate, and raise EngineLost in every request inside.

        Which weights would answer them is unknown.
        """
        self.gate.seal(str(why), code=why.code)
        # Not the error itself: its frames would hold the engine's weights.
        self._loss = self._loss or EngineLost(str(why), code=why.code)
        self._is_lost.set()
        self._engine.lose(str(why))

    async def wait_until_lost(self) -> EngineLost:
        """Wait until the engine is lost, and return why."""
        await self._is_lost.wait()
        assert self._loss is not None
        return self._loss

    @contextmanager
    def seal_when_lost(self) -> Iterator[None]:
        """Seal the gate before EngineLost leaves the block.

        A later seal would let requests run on unknown weights.
        """
        try:
            yield
        except EngineLost as lost:
            self.lose(lost)
            raise


@dataclass(frozen=True, slots=True)
class GenerationOnTrial:
    """A generation that some engines have; it is live for the daemon once all have it."""

    generation: Generation
    reject: Callable[[Reason], None]
    """Refuse the generation for this reason; the engines that have it return to the live one."""


class Replicas[E: Engine]:
    """The engines that serve, without lost ones until they are started again."""

    def __init__(self, by_index: Mapping[int, Replica[E]]) -> None:
        """The owner adds and removes engines in `by_index`, which is never empty at first."""
        self._by_index = by_index
        self.live = self.first.live
        """The daemon's live generation; during an attempt some engines have another."""
        self.trial: GenerationOnTrial | None = None
        """The generation of the attempt under way, once the first engine has it."""
        self.changing = asyncio.Lock()
        """Held during an attempt, and while a started engine joins."""

    def __iter__(self) -> Iterator[Replica[E]]:
        """Iterate over the engines that serve, by index."""
        serving = (each for _, each in sorted(self._by_index.items()) if not each.gate.is_lost)
        return iter(tuple(serving))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def first(self) -> Replica[E]:
        """The engine that new weights are tried on first."""
        serving = next(iter(self), None)
        if serving is None:
            raise EngineLost("no engine serves any more")
        return serving

    @property
    def mode(self) -> Mode:
        """The mode in which new weights take over, the same for all engines of one model."""
        return self.first.mode

    def name_live(self, live: Generation) -> None:
        """Give the live generation a new version on every engine."""
        self.live = live
        for replica in self:
            replica.rename_live(live)

    def keeps(self, place: PastGeneration) -> bool:
        """Return True if a rollback needs no loading now: other engines copy from one."""
        is_live = place.number == self.live.number  # here and there, while others are tried
        return is_live or any(replica.keeps(place) for replica in self)


def _name(weights: Staged) -> tuple[object, str]:
    return weights.revision, weights.fingerprint
