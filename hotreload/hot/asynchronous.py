"""START HERE: an engine in your own program, whose weights change while it answers.

It has the daemon's engine, gate, switches and checks, and none of its sockets, settings and state.
"""

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

from hotreload.core.attempt_records import Attempts
from hotreload.core.engines.replica import Replica
from hotreload.core.judge import limit_probes
from hotreload.core.ledger import Ledger
from hotreload.core.switch import ABORT_GRACE
from hotreload.core.way_in.gate import Gate
from hotreload.engine.answering.answers import all_ended
from hotreload.engine.answering.probe import Probe
from hotreload.engine.sglang import SglangEngine
from hotreload.errors import DrainTimedOut, EngineLost
from hotreload.events import Events
from hotreload.hot.answering_engine import (
    AnsweringEngine,
    check_is_staged,
    check_whole_number,
    wants_probes,
)
from hotreload.hot.engine_start import Boot, StartedEngine, begin_background, log_event, start
from hotreload.hot.memory_release import MemoryRelease
from hotreload.hot.names import GivenWeights, Names, rename
from hotreload.hot.new_weights import NewWeights
from hotreload.hot.staged import AsyncStagedWeights
from hotreload.hot.terms import HotTerms
from hotreload.hot.weight_changes import WeightChanges
from hotreload.threads import run_to_end
from hotreload.types import Generation, Mode


class AsyncHotEngine(AnsweringEngine):
    """An engine that belongs to the event loop of `start`, which makes it."""

    def __new__(cls, *given: object, **_: object) -> Self:
        """TypeError for a program that calls the class: it must await `start`."""
        if not given or not isinstance(given[0], StartedEngine):
            raise TypeError(f"{cls.__name__} is made by `await {cls.__name__}.start(model, …)`")
        return super().__new__(cls)

    def __init__(self, started: StartedEngine, terms: HotTerms) -> None:
        events, engine = Events(), started.engine
        publish = events.publish
        super().__init__(Gate[SglangEngine](publish=publish, max_held=sys.maxsize))
        self.subscribe = events.subscribe
        """Call an observer with each event, on the loop; the returned call ends this."""
        self.subscribe(log_event)
        self._probe_timeout = terms.probe_timeout
        self._started = started
        attempts = Attempts(
            Ledger(), write=_nothing_to_save, publish=publish, is_lost=lambda: self._gate.is_lost
        )
        live = attempts.mint(engine.weights.live)
        attempts.record_live(live, started.path)
        mode = Mode(terms.mode) if engine.switch.cannot_overlap is None else Mode.DRAIN
        self._replica = Replica(engine, self._gate, live, mode)
        check_there = partial(self._released_parts.check_changes, mode)
        self._changes = WeightChanges(
            self._replica, attempts, terms.rules, check=self._check, check_there=check_there
        )
        self._new_weights = NewWeights(self._replica, started.checks, self._changes)
        holding = (self._replica, self._released_parts, self._changes, self._new_weights)
        self._memory_release = MemoryRelease(*holding, terms.drain_timeout)
        self._replica.open()
        self._background = begin_background(self._replica, terms, publish)

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
        """Start an engine on a model's folder; `args` are further ones of sglang-jax's Engine.

        The folder's weights are checked and pass the probes; `boot="random"` loads none.
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

        Tensors that a mapping leaves out stay those of the live weights; with `complete` none may
        be left out. `names` finds the Hugging Face name of each array. CheckpointRejected lists
        all that is wrong. The caller's arrays are only read, and are free again on return.
        """
        self._check_for_change()
        since, given = self._changes.rollbacks, rename(given, names)
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
        """Stage new weights, prove them by the probes and make them live; an error changes nothing.

        A second update waits until this one has ended. `probes=()` skips the probes; the other
        arguments are those of `stage`.
        """
        self._check_for_change()
        prove, given = wants_probes(probes), rename(given, names)
        return await self._new_weights.update(given, name, complete=complete, prove=prove)

    async def flip(self, staged: AsyncStagedWeights) -> Generation:
        """Answer new requests by staged weights; requests under way end by the weights before."""
        self._check()
        check_is_staged(staged, AsyncStagedWeights)
        return await staged.flip()

    async def probe(self, staged: AsyncStagedWeights | None = None) -> None:
        """Send the probes to staged weights, or to the live; ProbeFailed lists bad answers."""
        self._check()
        if staged is not None:
            check_is_staged(staged, AsyncStagedWeights)
            await staged.probe()
            return
        self._released_parts.check_answers()
        probing = limit_probes(self._probe_timeout, "[reload] probe_timeout")
        async with self._inside() as lease, probing:
            await lease.engine.unseen.probe()

    async def rollback(self, number: int | None = None) -> Generation:
        """Make an earlier generation (by default the last) live again, from memory or folder."""
        self._check_for_change()
        if number is not None:
            check_whole_number("number", number)
        place, left = self._changes.place_to_go_back_to(number), self.generation.revision
        since = self._changes.overrule()
        live = await self._changes.back(place)
        if live is None:
            live = await self._new_weights.bring_back(place, since)
            self._changes.leave(left)
        return live

    async def fingerprint_of(
        self, given: GivenWeights, *, names: Names | None = None, complete: bool = False
    ) -> str | None:
        """Return the fingerprint that these weights have once they are live; None if cast."""
        given = rename(given, names)
        return await self._new_weights.fingerprint_of(given, complete=complete)

    def _check_for_change(self) -> None:
        """Raise as `_check` does; NotServing while memory is released that new weights need."""
        self._check()
        self._released_parts.check_changes(self._replica.mode)

    # --- memory for others --------------------------------------------------------------------

    async def release(self, *, kv: bool = True, weights: bool = False, abort: bool = False) -> int:
        """Free the device memory of the KV pool, or of all weights; return the number of bytes.

        It waits for the answers under way, or aborts them. Until `resume`, `generate` raises
        NotServing, as does every call that needs the released memory.
        """
        self._check()
        return await self._memory_release.release(kv=kv, weights=weights, abort=abort)

    async def resume(
        self,
        given: GivenWeights | None = None,
        name: str = "",
        *,
        names: Names | None = None,
        number: int | None = None,
        probes: Sequence[Probe] | None = None,
    ) -> Generation:
        """Take the released memory back and answer again; nothing is compiled anew.

        If the weights were released, the given ones are proven and go live, or those of generation
        `number`, or of the last one, read again from its folder. After an error the memory is
        released as before.
        """
        self._check()
        if number is not None:
            check_whole_number("number", number)
        prove, given = wants_probes(probes), given if given is None else rename(given, names)
        return await self._memory_release.resume(given, name, number=number, prove=prove)

    @property
    def released(self) -> frozenset[str]:
        """The parts of the engine's memory that are released now: of `kv` and `weights`."""
        return self._released_parts.parts

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
        return self._changes.staged

    @property
    def mode(self) -> Mode:
        """The way new weights take over; `drain` if the engine cannot overlap."""
        return self._replica.mode

    @property
    def engine(self) -> Any:
        """sglang-jax's own Engine, only to look at: a request to it would bypass the gate."""
        return self._replica.engine.upstream

    # --- the end --------------------------------------------------------------------------------

    async def close(self) -> None:
        """End the answers and changes under way, then the engine, and free the device.

        Every call returns when the engine has ended, even a cancelled one; a second call changes
        nothing.
        """
        if not self._home.is_here:
            return  # the engine is another process's
        self._gate.seal("the engine is closed")
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await run_to_end(asyncio.wait({self._ending}))
        self._ending.result()

    async def _end(self) -> None:
        try:
            await self._changes.end()
            await all_ended([*self._streams])
            with suppress(DrainTimedOut, EngineLost):
                await self._replica.engine.answers.abort()
                await self._gate.wait_until_empty(ABORT_GRACE)
            tasks, self._background = self._background, []  # a cancelled task holds its objects
            await all_ended(tasks)
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

    async def __aexit__(self, *error: object) -> None:
        await self.close()


async def _nothing_to_save(ledger: Ledger) -> None:
    """Save nothing: a program's engine has no state file."""
