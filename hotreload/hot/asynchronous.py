"""START HERE: an engine in a program of one's own, whose weights change while it answers.

The parts of the daemon without its sockets, settings and state: the same engine, the same gate,
the same switches, the same checks.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hotreload.core.attempt_records import Attempts
from hotreload.core.engines.replica import Replica
from hotreload.core.ledger import Ledger
from hotreload.core.probes import limit_probes
from hotreload.core.switch import ABORT_GRACE
from hotreload.core.way_in.gate import Gate
from hotreload.engine.answering.probe import Probe
from hotreload.engine.sglang import SglangEngine
from hotreload.errors import DrainTimedOut, EngineLost
from hotreload.events import Events
from hotreload.hot.answering import AnsweringHalf
from hotreload.hot.asking import are_asked, check_is_staged, check_whole_number
from hotreload.hot.given_weights import GivenWeights
from hotreload.hot.names import Names, renamed
from hotreload.hot.new_weights import NewWeights
from hotreload.hot.released import Releasing
from hotreload.hot.staged import AsyncStagedWeights
from hotreload.hot.started import Boot, Started, TasksBeside, start, tell
from hotreload.hot.switching import Switching
from hotreload.hot.terms import HotTerms
from hotreload.threads import run_to_end
from hotreload.types import Generation, Mode


class AsyncHotEngine(AnsweringHalf):
    """Belongs to the loop it was started on; made by `start`."""

    def __new__(cls, *given: object, **_: object) -> Self:
        """Refuse what `start` takes, which has to be awaited."""
        if not given or not isinstance(given[0], Started):
            raise TypeError(f"{cls.__name__} is made by `await {cls.__name__}.start(model, …)`")
        return super().__new__(cls)

    def __init__(self, started: Started, terms: HotTerms) -> None:
        events, engine = Events(), started.engine
        publish = events.publish
        super().__init__(Gate[SglangEngine](publish=publish, max_held=sys.maxsize))
        self.subscribe = events.subscribe
        """Have each event told on the loop; the returned call ends that."""
        self.subscribe(tell)
        self._probe_timeout = terms.probe_timeout
        self._started = started
        attempts = Attempts(
            Ledger(), save=_nothing_to_save, publish=publish, is_lost=lambda: self._gate.is_lost
        )
        live = attempts.mint(engine.live)
        attempts.record_live(live, started.path)
        mode = Mode(terms.mode) if engine.cannot_overlap is None else Mode.DRAIN
        self._replica = Replica(engine, self._gate, live, mode)
        check_there = partial(self._released.check_changes, mode)
        self._switching = Switching(
            self._replica, attempts, terms.rules, check=self._check, check_there=check_there
        )
        self._new_weights = NewWeights(self._replica, started.checks, self._switching)
        self._releasing = Releasing(
            self._replica, self._released, self._switching, self._new_weights, terms.drain_timeout
        )
        self._replica.open()
        self._beside = TasksBeside(self._replica)
        self._beside.begin(terms, publish)

    @classmethod
    async def start(
        cls,
        model: str | Path,
        *,
        device: str = "auto",
        tp: int = 1,
        first_device: int = 0,
        dtype: str = "auto",
        args: Mapping[str, Any] | None = None,
        probes: Sequence[Probe] = (),
        terms: HotTerms = HotTerms(),  # noqa: B008 (frozen)
        boot: Boot = "checkpoint",
    ) -> Self:
        """Start an engine on a model's folder; `args` are what sglang-jax's Engine takes beside.

        Its weights are checked, and answer the probes; with `boot="random"` there are none yet.
        """
        make = partial(start, device=device, tp=tp, first_device=first_device, dtype=dtype)
        started = await make(model, args=args, probes=probes, terms=terms, boot=boot)
        try:
            return cls(started, terms)
        except BaseException:
            await started.end()
            raise

    # --- new weights --------------------------------------------------------------------------

    async def stage(
        self,
        given: GivenWeights,
        name: str = "",
        *,
        names: Names | None = None,
        complete: bool = False,
    ) -> AsyncStagedWeights:
        """Check new weights and load them beside the live ones, which go on answering.

        Tensors that are left out of a mapping stay as they are live, unless it is to be `complete`.
        `names` finds the Hugging Face name of each. CheckpointRejected says all that is wrong with
        them. The caller's arrays are only read, and are the caller's again when this returns.
        """
        self._check_for_change()
        since, given = self._switching.rollbacks, renamed(given, names)
        return await self._new_weights.stage(given, name, since, complete=complete)

    async def update(
        self,
        given: GivenWeights,
        name: str = "",
        *,
        names: Names | None = None,
        complete: bool = False,
        probes: Sequence[Probe] | None = None,
    ) -> Generation:
        """Stage new weights, prove them and answer by them from now on: all of it, or nothing.

        One that comes meanwhile waits for its turn. `probes=()` asks none of these weights; the
        other arguments are those of `stage`.
        """
        self._check_for_change()
        prove, given = are_asked(probes), renamed(given, names)
        return await self._new_weights.update(given, name, complete=complete, prove=prove)

    async def flip(self, staged: AsyncStagedWeights) -> Generation:
        """Answer by staged weights from now on; those inside end under the weights before."""
        self._check()
        check_is_staged(staged, AsyncStagedWeights)
        return await staged.flip()

    async def probe(self, staged: AsyncStagedWeights | None = None) -> None:
        """Ask the probes of staged weights, or of the live ones; ProbeFailed lists bad answers."""
        self._check()
        if staged is not None:
            check_is_staged(staged, AsyncStagedWeights)
            await staged.probe()
            return
        self._released.check_answers()
        probing = limit_probes(self._probe_timeout, "[reload] probe_timeout")
        async with self._inside() as lease, probing:
            await lease.engine.probe()

    async def rollback(self, number: int | None = None) -> Generation:
        """Answer by the generation before again, or by this one: from memory, else its folder."""
        self._check_for_change()
        if number is not None:
            check_whole_number("number", number)
        place, left = self._switching.place_to_go_back_to(number), self.generation.revision
        since = self._switching.overrule()
        live = await self._switching.back(place)
        if live is None:
            live = await self._new_weights.bring_back(place, since)
            self._switching.leave(left)
        return live

    async def fingerprint_of(
        self, given: GivenWeights, *, names: Names | None = None, complete: bool = False
    ) -> str | None:
        """The fingerprint these weights will have when they are live; None if they are cast."""
        given = renamed(given, names)
        return await self._new_weights.fingerprint_of(given, complete=complete)

    def _check_for_change(self) -> None:
        """Raise as `_check` does, and while memory is released that other weights need."""
        self._check()
        self._released.check_changes(self._replica.mode)

    # --- memory for others --------------------------------------------------------------------

    async def release(self, *, kv: bool = True, weights: bool = False, abort: bool = False) -> int:
        """Give the device memory of the KV pool, or of all weights, to others until `resume`.

        It waits for the answers under way, or has them aborted, and returns how many bytes were
        freed. Until then `generate` is NotServing; so is all that needs weights that are released.
        """
        self._check()
        return await self._releasing.release(kv=kv, weights=weights, abort=abort)

    async def resume(
        self,
        given: GivenWeights | None = None,
        name: str = "",
        *,
        names: Names | None = None,
        number: int | None = None,
        probes: Sequence[Probe] | None = None,
    ) -> Generation:
        """Take the memory again that was released, and answer; nothing is compiled anew.

        Where the weights were released these are proven and answer, or those of the generation of
        this number, or of the last one, read from its folder again. After an error all is released
        as before.
        """
        self._check()
        if number is not None:
            check_whole_number("number", number)
        prove, given = are_asked(probes), given if given is None else renamed(given, names)
        return await self._releasing.resume(given, name, number=number, prove=prove)

    @property
    def released(self) -> frozenset[str]:
        """The parts of its memory that others have: of `kv` and `weights`."""
        return self._released.parts

    # --- what answers -------------------------------------------------------------------------

    @property
    def generation(self) -> Generation:
        """The generation that answers new requests."""
        return self._replica.live

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the weights that answer new requests."""
        return self.generation.fingerprint

    @property
    def staged(self) -> AsyncStagedWeights | None:
        """The weights that wait beside the live ones, if any."""
        return self._switching.staged

    @property
    def mode(self) -> Mode:
        """The way new weights take over; `drain` where the engine cannot overlap."""
        return self._replica.mode

    @property
    def engine(self) -> Any:
        """sglang-jax's own Engine, to look at: requests sent to it would bypass the gate."""
        return self._replica.engine.upstream

    # --- the end --------------------------------------------------------------------------------

    async def close(self) -> None:
        """End what is under way, and the engine; free the device. Twice is once.

        Every call returns when that is done, also one that is cancelled meanwhile.
        """
        if not self._home.is_here:
            return  # it is another process's
        self._gate.seal("the engine is closed")
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await run_to_end(asyncio.wait({self._ending}))
        self._ending.result()

    async def _end(self) -> None:
        try:
            await self._switching.end()
            await self._streams.end()
            with suppress(DrainTimedOut, EngineLost):
                await self._replica.engine.abort()
                await self._gate.wait_until_empty(ABORT_GRACE)
            await self._beside.end()
        finally:
            self._replica.drop_spares()
            await self._started.end()

    def __repr__(self) -> str:
        live, does = self.generation, "is lost with" if self._gate.is_lost else "answers by"
        if self._ending is not None:
            does = "was closed after"
        return f"<{type(self).__name__}: {does} generation {live.number}, {live.revision}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


async def _nothing_to_save(ledger: Ledger) -> None:
    """A program's engine remembers nothing beyond its life."""
