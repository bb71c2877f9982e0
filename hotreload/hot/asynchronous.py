"""START HERE: an engine in a program of one's own, whose weights change while it answers.

The parts of the daemon without its sockets, settings and state: the same engine, the same gate,
the same switches, the same checks.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, overload

from hotreload.core.attempts import Attempts
from hotreload.core.fading import see_old_ones_out
from hotreload.core.gate import Gate
from hotreload.core.ledger import Ledger, PastGeneration
from hotreload.core.nonfinite import heed_withheld_answers
from hotreload.core.replica import Replica
from hotreload.core.switch import ABORT_GRACE
from hotreload.core.trust import tell_of_distrust
from hotreload.engine.answering.probe import Probe
from hotreload.engine.sglang import SglangEngine
from hotreload.errors import (
    BadRequest,
    DrainTimedOut,
    EngineLost,
    NothingOfThatName,
    NotServing,
    ProbeFailed,
)
from hotreload.events import AnswersWithheld, Event, Events, GateChanged, LoaderDistrusted
from hotreload.hot.checking import Given
from hotreload.hot.staged import AsyncStagedWeights
from hotreload.hot.started import Boot, Started, start
from hotreload.hot.switching import Switching
from hotreload.hot.terms import HotTerms
from hotreload.threads import uninterrupted
from hotreload.types import Generation, Mode

log = logging.getLogger("hotreload.hot")

Answer = dict[str, Any]
"""What sglang-jax answers; its `meta_info` also has `generation`, `revision` and `fingerprint`."""
Prompt = str | list[int]
"""A text, or its token ids."""
Prompts = list[str] | list[list[int]]
Sampling = Mapping[str, Any] | list[dict[str, Any]]
"""As sglang-jax takes them, for all prompts or for each."""
ADMISSION_SECONDS = 60.0
"""How long a request waits for a generation that is new enough."""


class AsyncHotEngine:
    """Belongs to the loop it was started on; made by `start`."""

    def __init__(self, started: Started, terms: HotTerms) -> None:
        events, engine = Events(), started.engine
        publish = events.publish
        self.subscribe = events.subscribe
        """Have each event told on the loop; the returned call ends that."""
        self.subscribe(_tell)
        self._ending: asyncio.Task[None] | None = None
        self._updates = asyncio.Lock()
        self._probe_timeout = terms.probe_timeout
        self._started = started
        self._checks = started.checks
        self._gate = Gate[SglangEngine](publish=publish, max_held=sys.maxsize)
        attempts = Attempts(
            Ledger(), save=_nothing_to_save, publish=publish, is_lost=lambda: self._gate.is_lost
        )
        live = attempts.mint(engine.live)
        attempts.record(live, started.path)
        mode = Mode(terms.mode) if engine.cannot_overlap is None else Mode.DRAIN
        self._replica = Replica(engine, self._gate, live, mode)
        self._switching = Switching(self._replica, attempts, terms.rules, check=self._check)
        self._replica.open()
        keep = terms.rules.keep_previous
        lasting: list[Coroutine[Any, Any, NoReturn]] = [
            engine.died(),
            see_old_ones_out(self._replica, keep=keep, publish=publish),
            tell_of_distrust(self._replica, distrusted=engine.distrusted, publish=publish),
            heed_withheld_answers(
                self._replica,
                publish=publish,
                drain_timeout=lambda: terms.drain_timeout,
                leave=None,
            ),
        ]
        self._tasks = [asyncio.create_task(self._lasting(work)) for work in lasting]

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

    async def stage(self, given: Given, name: str = "") -> AsyncStagedWeights:
        """Check new weights and load them beside the live ones, which go on answering.

        CheckpointRejected says all that is wrong with them. The caller's arrays are only read, and
        are the caller's again when this returns.
        """
        return await self._stage(given, name, self._switching.rollbacks)

    async def _stage(self, given: Given, name: str, since: int) -> AsyncStagedWeights:
        self._check()
        self._switching.check_free()
        checkpoint = await self._checks.check(given, name)
        return await self._switching.stage(checkpoint, since)

    async def update(self, given: Given, name: str = "") -> Generation:
        """Stage new weights, prove them and answer by them from now on: all of it, or nothing.

        One that comes meanwhile waits for its turn.
        """
        since = self._switching.rollbacks
        async with self._updates, await self._stage(given, name, since) as staged:
            return await staged.flip(since=since)

    async def flip(self, staged: AsyncStagedWeights) -> Generation:
        """Answer by staged weights from now on; those inside end under the weights before."""
        self._check()
        return await staged.flip()

    async def probe(self, staged: AsyncStagedWeights | None = None) -> None:
        """Ask the probes of staged weights, or of the live ones; ProbeFailed lists bad answers."""
        self._check()
        if staged is not None:
            await staged.probe()
            return
        within = self._probe_timeout
        try:
            async with asyncio.timeout(within):
                await self._replica.engine.probe()
        except TimeoutError:
            late = f"no answer to the probe within {within:g} s ([reload] probe_timeout)"
            raise ProbeFailed(late) from None

    async def rollback(self, number: int | None = None) -> Generation:
        """Answer by the generation before again, or by this one: from memory, else its folder."""
        self._check()
        place, left = self._switching.place_to_go_back_to(number), self.generation.revision
        since = self._switching.overrule()
        live = await self._switching.back(place)
        if live is None:
            live = await self._from_files(place, since)
            self._switching.leave(left)
        return live

    async def _from_files(self, place: PastGeneration, since: int) -> Generation:
        self._switching.check_free()
        gone = f"generation {place.number} is no longer kept in memory"
        if not place.path:
            raise NothingOfThatName(f"{gone}, and has no files: stage it again")
        checkpoint = await self._checks.check(place.path, place.revision.label)
        if checkpoint.revision != place.revision:
            raise NothingOfThatName(f"{gone}, and {place.path} holds other bytes now")
        async with await self._switching.stage(checkpoint, since) as staged:
            return await staged.flip(since=since)

    async def fingerprint_of(self, given: Given) -> str | None:
        """The fingerprint these weights will have when they are live; None if they are cast."""
        return await self._checks.fingerprint_of(given)

    # --- what answers -------------------------------------------------------------------------

    @property
    def generation(self) -> Generation:
        """What answers new requests."""
        return self._replica.live

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the weights that answer new requests."""
        return self.generation.fingerprint

    @property
    def staged(self) -> AsyncStagedWeights | None:
        """The weights that wait beside the live ones, if any."""
        staged = self._switching.staged
        return staged if staged is not None and staged.is_held else None

    @property
    def mode(self) -> Mode:
        """How new weights take over; `drain` where the engine cannot overlap."""
        return self._replica.mode

    @property
    def engine(self) -> Any:
        """sglang-jax's own Engine, to look at: who sends it requests passes by the gate."""
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
        prompt: Prompts,
        sampling_params: Sampling | None = None,
        *,
        at_least: int = 0,
        **more: Any,
    ) -> list[Answer]: ...

    async def generate(
        self,
        prompt: Prompt | Prompts,
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
        request = _request(prompt, sampling_params, more)
        async with self._answering(request, at_least) as (generation, answers):
            item = await anext(answers)
        for answer in item if isinstance(item, list) else [item]:
            _stamp(answer, generation)
        return item

    async def stream(
        self,
        prompt: Prompt | Prompts,
        sampling_params: Sampling | None = None,
        *,
        at_least: int = 0,
        **more: Any,
    ) -> AsyncGenerator[Answer]:
        """The same in pieces, each with the whole text so far; closing it aborts the answer."""
        request = _request(prompt, sampling_params, more) | {"stream": True}
        async with self._answering(request, at_least) as (generation, answers):
            async for answer in answers:
                assert isinstance(answer, dict), "a stream has no lists"
                _stamp(answer, generation)
                yield answer

    @asynccontextmanager
    async def _answering(
        self, request: Mapping[str, Any], at_least: int
    ) -> AsyncIterator[tuple[Generation, AsyncGenerator[Answer | list[Answer]]]]:
        self._check()
        prepared = await self._gate.preparer().prepare(request)
        async with (
            self._gate.passing(at_least, ADMISSION_SECONDS) as lease,
            aclosing(lease.engine.generate(prepared, lease.weights)) as answers,
        ):
            yield lease.generation, answers

    # --- the end --------------------------------------------------------------------------------

    async def close(self) -> None:
        """End what is under way, and the engine; free the device. Twice is once.

        Whoever calls it returns when that is done, also one who is cancelled meanwhile.
        """
        self._gate.seal("the engine is closed")
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await uninterrupted(asyncio.wait({self._ending}))
        self._ending.result()

    async def _end(self) -> None:
        try:
            await self._switching.end()
            with suppress(DrainTimedOut, EngineLost):
                await self._replica.engine.abort()
                await self._gate.drained(ABORT_GRACE)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            self._replica.let_go()
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

    async def _lasting(self, work: Coroutine[Any, Any, NoReturn]) -> None:
        """Work that lasts as long as the engine; its loss seals the gate."""
        try:
            await work
        except EngineLost as lost:
            self._replica.lose(lost)
        except Exception as broken:
            log.exception("hot.broken")
            self._replica.lose(EngineLost(f"a part of hotreload broke: {broken!r}"))

    def _check(self) -> None:
        """EngineLost when it is lost, NotServing when it is closed."""
        try:
            self._gate.preparer()
        except NotServing as refusal:
            if self._gate.is_lost:
                raise EngineLost(f"{refusal}: close it, and start another") from refusal
            raise


async def _nothing_to_save(ledger: Ledger) -> None:
    """A program's engine remembers nothing beyond its life."""


def _tell(event: Event) -> None:
    is_loss = isinstance(event, GateChanged) and event.code == EngineLost.code
    alarming = is_loss or isinstance(event, AnswersWithheld | LoaderDistrusted)
    log.log(logging.WARNING if alarming else logging.DEBUG, "%s", event)


def _request(
    prompt: Prompt | Prompts, sampling: Sampling | None, more: Mapping[str, Any]
) -> dict[str, Any]:
    """In the engine's own schema."""
    is_text = isinstance(prompt, str) or (bool(prompt) and isinstance(prompt[0], str))
    name = "text" if is_text else "input_ids"
    return {name: prompt, "sampling_params": sampling or {}, **more}


def _stamp(answer: Answer, generation: Generation) -> None:
    answer["meta_info"] = {**answer.get("meta_info", {}), **generation.stamp}
