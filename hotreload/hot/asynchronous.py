"""START HERE: an engine in a program of one's own, whose weights change while it answers.

The parts of the daemon without its sockets, settings and state: the same engine, the same gate,
the same switches, the same checks.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, overload

from hotreload.core.gate import Gate
from hotreload.core.ledger import Ledger
from hotreload.core.probing import probes_within
from hotreload.core.recording import Attempts
from hotreload.core.replica import Replica
from hotreload.core.switch import ABORT_GRACE
from hotreload.engine.answering.answers import Answer
from hotreload.engine.answering.probe import Probe
from hotreload.engine.sglang import SglangEngine
from hotreload.errors import BadRequest, DrainTimedOut, EngineLost, NotServing
from hotreload.events import Events
from hotreload.hot.asking import (
    Prompt,
    Sampling,
    SeveralPrompts,
    Streams,
    are_asked,
    check_is_staged,
    check_text,
    check_whole_number,
    request_for,
    stamp,
)
from hotreload.hot.given_weights import GivenWeights
from hotreload.hot.loop_thread import Home
from hotreload.hot.names import Names, renamed
from hotreload.hot.new_weights import NewWeights
from hotreload.hot.staged import AsyncStagedWeights
from hotreload.hot.started import Boot, Started, TasksBeside, start, tell
from hotreload.hot.switching import Switching
from hotreload.hot.terms import HotTerms
from hotreload.threads import uninterrupted
from hotreload.types import Generation, Mode

ADMISSION_SECONDS = 60.0
"""Time that a request waits for a generation that is new enough."""


class AsyncHotEngine:
    """Belongs to the loop it was started on; made by `start`."""

    def __init__(self, started: Started, terms: HotTerms) -> None:
        events, engine = Events(), started.engine
        publish = events.publish
        self.subscribe = events.subscribe
        """Have each event told on the loop; the returned call ends that."""
        self.subscribe(tell)
        self._home = Home()
        self._ending: asyncio.Task[None] | None = None
        self._probe_timeout = terms.probe_timeout
        self._started = started
        self._gate = Gate[SglangEngine](publish=publish, max_held=sys.maxsize)
        attempts = Attempts(
            Ledger(), save=_nothing_to_save, publish=publish, is_lost=lambda: self._gate.is_lost
        )
        live = attempts.mint(engine.live)
        attempts.record(live, started.path)
        mode = Mode(terms.mode) if engine.cannot_overlap is None else Mode.DRAIN
        self._replica = Replica(engine, self._gate, live, mode)
        self._switching = Switching(self._replica, attempts, terms.rules, check=self._check)
        self._new_weights = NewWeights(self._replica, started.checks, self._switching)
        self._replica.open()
        self._streams = Streams()
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
        self._check()
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
        self._check()
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
        async with probes_within(self._probe_timeout, "[reload] probe_timeout"):
            await self._replica.engine.probe()

    async def rollback(self, number: int | None = None) -> Generation:
        """Answer by the generation before again, or by this one: from memory, else its folder."""
        self._check()
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

    @overload
    async def generate(
        self,
        prompt: Prompt,
        sampling_params: Sampling | None = None,
        *,
        at_least: int = 0,
        **more: Any,
    ) -> Answer: ...

    @overload
    async def generate(
        self,
        prompt: SeveralPrompts,
        sampling_params: Sampling | None = None,
        *,
        at_least: int = 0,
        **more: Any,
    ) -> list[Answer]: ...

    async def generate(
        self,
        prompt: Prompt | SeveralPrompts,
        sampling_params: Sampling | None = None,
        *,
        at_least: int = 0,
        **more: Any,
    ) -> Answer | list[Answer]:
        """The answer, or a list of them for a list of prompts; each is by one generation alone.

        `more` is what sglang-jax's `/generate` takes beside. A generation older than `at_least`
        does not answer: it is waited for, then NotNewEnough.
        """
        if more.get("stream"):
            raise BadRequest("generate answers at once: for pieces, call stream")
        async with aclosing(self._answers(prompt, sampling_params, at_least, more)) as answers:
            answer: Answer | list[Answer] = await anext(answers)
        if self._ending is not None:
            raise NotServing("the engine was closed meanwhile")
        return answer

    async def stream(
        self,
        prompt: Prompt | SeveralPrompts,
        sampling_params: Sampling | None = None,
        *,
        at_least: int = 0,
        **more: Any,
    ) -> AsyncGenerator[Answer]:
        """The same in pieces, each with the whole text so far; closing it aborts the answer."""
        more["stream"] = True
        stream = self._streams.begin(self._answers(prompt, sampling_params, at_least, more))
        # No other generator within this one: asyncio closes all of them at once when a loop ends.
        try:
            while (piece := await stream.next()) is not None:
                yield piece
        finally:
            await stream.end()

    async def _answers(
        self,
        prompt: Prompt | SeveralPrompts,
        sampling: Sampling | None,
        at_least: int,
        more: Mapping[str, Any],
    ) -> AsyncGenerator[Any]:
        """Yield what the engine answers, once or in pieces; each answer says who made it."""
        self._check()
        check_whole_number("at_least", at_least)
        request = request_for(prompt, sampling, more)
        prepared = await self._gate.preparer().prepare(request)
        async with (
            self._gate.passing(at_least, ADMISSION_SECONDS) as lease,
            aclosing(lease.engine.generate(prepared, lease.weights)) as answers,
        ):
            async for answer in answers:
                for each in answer if isinstance(answer, list) else [answer]:
                    stamp(each, lease.generation)
                yield answer

    async def abort(self, rid: str | None = None) -> int:
        """End the answers under way (to prompts that are called so), as they are; how many."""
        self._check()
        if rid is not None:
            check_text("rid", rid)
        return await self._replica.engine.abort_asked(rid)

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
        await uninterrupted(asyncio.wait({self._ending}))
        self._ending.result()

    async def _end(self) -> None:
        try:
            await self._switching.end()
            await self._streams.end()
            with suppress(DrainTimedOut, EngineLost):
                await self._replica.engine.abort()
                await self._gate.drained(ABORT_GRACE)
            await self._beside.end()
        finally:
            self._replica.drop_spares()
            await self._started.end()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def _check(self) -> None:
        """EngineLost when it is lost, NotServing when it is closed, BadRequest after a fork."""
        self._home.check()
        try:
            self._gate.preparer()
        except NotServing as refusal:
            if self._gate.is_lost:
                raise EngineLost(f"{refusal}: close it, and start another") from refusal
            raise


async def _nothing_to_save(ledger: Ledger) -> None:
    """A program's engine remembers nothing beyond its life."""
