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
from hotreload.core.way_in.gate import Gate
from hotreload.errors import EngineLost
from hotreload.events import ModeChosen
from hotreload.types import Generation, Lease, Mode, Reason, Staged


def choose_mode(wished: Mode, engine: Engine) -> ModeChosen:
    """Choose how weights are exchanged in this life: as the operator wishes, if the engine can."""
    why_not = engine.cannot_overlap if wished is Mode.OVERLAP else None
    return ModeChosen(Mode.DRAIN if why_not else wished, why_not)


@dataclass(eq=False, slots=True)
class FadingWeights:
    """Weights that were live, and still answer those who began under them."""

    weights: Staged
    generations: tuple[Generation, ...]
    """Their generations, oldest first; a rollback to them while they fade adds one."""
    since: float
    """When others went live, by the monotonic clock."""
    is_outlived: bool = False
    """True when younger ones ended before them: a rollback would go to those."""


class Replica[E: Engine]:
    """One engine, the gate before it, what answers, what answered before, what is to answer.

    Of the engine the core uses its port alone, so it takes a replica of any engine.
    """

    def __init__(self, engine: E, gate: Gate[E], live: Generation, mode: Mode = Mode.DRAIN) -> None:
        # Read through a property: could it be set, a Replica[E] would be no Replica[Engine].
        self._engine = engine
        self.gate: Gate[Any] = gate
        """Closed by any work on the engine; the replica alone opens it again."""
        self.index = gate.replica
        """Its index among the daemon's engines, which events carry."""
        self.mode = mode
        """The way new weights take over from those that are live."""
        self.live = live
        self.fading: list[FadingWeights] = []
        """Weights that answer too, oldest first; never any where a swap drains."""
        self.previous: Staged | None = None
        """Weights that wait in memory for a rollback; no request is answered by them."""
        self.staged: Staged | None = None
        self.staged_bytes = 0
        """All bytes that were ever read (or copied) for weights staged here."""
        self.alone = asyncio.Lock()
        """Held while weights that answer or are kept change, or are cleaned up after."""
        self._ended = asyncio.Event()
        self._loss: EngineLost | None = None
        self._is_lost = asyncio.Event()
        self._was_live_as: tuple[Generation, ...] = ()
        """Other generations of the live weights, if a rollback found them still answering."""

    @property
    def engine(self) -> E:
        """The engine behind the gate."""
        return self._engine

    def open(self) -> float:
        """Let requests in, to what is live on this engine; return how long arrivals were held."""
        return self.gate.open(self._lease())

    def _lease(self) -> Lease[E]:
        weights = self._engine.live if self.mode is Mode.OVERLAP else None
        return Lease(self.live, self._engine, weights)

    def switch_to(self, live: Generation, previous: Staged) -> None:
        """Have those who come from now on answered by this generation: the engine flipped to it.

        Those who are inside go on under the old weights, which fade.
        """
        again = next((each for each in self.fading if each.weights is self._engine.live), None)
        faded = FadingWeights(previous, (*self._was_live_as, self.live), time.monotonic())
        self._was_live_as = again.generations if again else ()
        self.fading = [*(each for each in self.fading if each is not again), faded]
        if self.previous is self._engine.live:
            self.previous = None
        self.live = live
        self.gate.change(self._lease())

    def rename_live(self, live: Generation) -> None:
        """Call the daemon's live generation so: this engine may be about to answer by others."""
        if self.live == live:
            self.live = live
        self.gate.name(live)

    @property
    def drained_weights(self) -> FadingWeights | None:
        """A set of weights that fades no longer: nobody is answered by it, or needs it still."""
        unneeded = (each for each in self.fading if not self.gate.is_needed(each.weights))
        return next(unneeded, None)

    def end(self, over: FadingWeights) -> None:
        """Count weights no longer among those that fade: they are spare, or gone."""
        self.fading.remove(over)
        self._ended.set()
        self._ended = asyncio.Event()

    async def fewer_fade(self, than: int) -> None:
        """Wait until fewer sets than that still answer older requests."""
        while len(self.fading) >= than:
            await self._ended.wait()

    def find_kept(self, place: PastGeneration) -> Staged | None:
        """The weights of this generation, if they wait in memory, or answer still.

        Equal weights of another revision do not count: its name would be shown as live.
        """
        held = [each.weights for each in self.fading]
        held += [self.previous] if self.previous is not None else []
        of_it = (each for each in held if _name(each) == (place.revision, place.fingerprint))
        return next(of_it, None)

    def keeps(self, place: PastGeneration) -> bool:
        """True if a rollback to this generation needs no loading now."""
        return self.find_kept(place) is not None

    async def put_away(self, spare: Staged, keep: KeepPrevious) -> None:
        """Keep weights that were live for a rollback, as the operator decided, or free them."""
        if keep is KeepPrevious.NONE:
            await self._engine.release(spare)
            return
        await self.forget_previous()
        self.previous = await self._engine.stow(spare) if keep is KeepPrevious.HOST else spare

    async def forget_previous(self) -> None:
        """Free the weights that wait for a rollback."""
        previous, self.previous = self.previous, None
        if previous is not None:
            await self._engine.release(previous)

    def drop_spares(self) -> None:
        """Hold no weights any more but the live ones, which end with the engine.

        The engine is not asked: it may be lost, or be closed already.
        """
        spare = [self.previous, self.staged, *(each.weights for each in self.fading)]
        self.previous = self.staged = None
        for faded in [*self.fading]:
            self.end(faded)
        for each in spare:
            if each is not None:
                each.weights.drop()

    def lose(self, why: EngineLost) -> None:
        """Let nobody in any more, and have who is inside hear of it.

        Nobody knows by which weights they would be answered.
        """
        self.gate.seal(str(why), code=why.code)
        # Not the error itself: its frames would hold the engine's weights.
        self._loss = self._loss or EngineLost(str(why), code=why.code)
        self._is_lost.set()
        self._engine.lose(str(why))

    async def wait_until_lost(self) -> EngineLost:
        """Wait until it is lost, and say why."""
        await self._is_lost.wait()
        assert self._loss is not None
        return self._loss

    @contextmanager
    def seal_when_lost(self) -> Iterator[None]:
        """Seal the gate before anybody hears that the engine is lost.

        First, or requests would run on who knows which weights.
        """
        try:
            yield
        except EngineLost as lost:
            self.lose(lost)
            raise


@dataclass(frozen=True, slots=True)
class GenerationOnTrial:
    """A generation on some engines, which is live for the daemon once every one has it."""

    generation: Generation
    reject: Callable[[Reason], None]
    """Have it refused for this reason; the engines that have it go back to what is live."""


class Replicas[E: Engine]:
    """The engines that serve: lost ones are not among them until they are started again."""

    def __init__(self, by_index: Mapping[int, Replica[E]]) -> None:
        """Its owner puts them in and takes them out; one must be there from the beginning."""
        self._by_index = by_index
        self.live = self.first.live
        """The daemon's live generation; while an attempt is carried out some hold another."""
        self.trial: GenerationOnTrial | None = None
        """The generation that an attempt carries on, once the first engine has it."""
        self.changing = asyncio.Lock()
        """Held while an attempt is carried out, and while an engine that was started joins."""

    def __iter__(self) -> Iterator[Replica[E]]:
        """Go through those that serve, in their order."""
        serving = (each for _, each in sorted(self._by_index.items()) if not each.gate.is_lost)
        return iter(tuple(serving))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def first(self) -> Replica[E]:
        """The one that new weights are tried on before the others."""
        serving = next(iter(self), None)
        if serving is None:
            raise EngineLost("no engine serves any more")
        return serving

    @property
    def mode(self) -> Mode:
        """The way new weights take over: engines of one model do it alike."""
        return self.first.mode

    def name_live(self, live: Generation) -> None:
        """Call the live generation so, wherever it answers."""
        self.live = live
        for replica in self:
            replica.rename_live(live)

    def keeps(self, place: PastGeneration) -> bool:
        """True if a rollback to this generation needs no loading now: others copy what one has."""
        is_live = place.number == self.live.number  # here and there, while others are tried
        return is_live or any(replica.keeps(place) for replica in self)


def _name(weights: Staged) -> tuple[object, str]:
    return weights.revision, weights.fingerprint
