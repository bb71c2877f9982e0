"""The engine for programs without an event loop, and for notebooks, whose loop runs already.

Each method runs the one of `AsyncHotEngine` and waits for its end; the promises stand there.
"""

import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Self, overload

from hotreload.engine.answering.answers import Answer
from hotreload.engine.answering.probe import Probe
from hotreload.errors import BadRequest, NotServing
from hotreload.events import Observer
from hotreload.hot.answering_engine import Prompt, Sampling, SeveralPrompts, check_is_staged
from hotreload.hot.asynchronous import AsyncHotEngine
from hotreload.hot.engine_start import Boot
from hotreload.hot.loop_thread import LoopThread
from hotreload.hot.names import GivenWeights, Names
from hotreload.hot.staged import AsyncStagedWeights
from hotreload.hot.terms import HotTerms
from hotreload.types import Generation, LoadFacts, Mode


class _Twin[Own]:
    """Calls an asynchronous object, from any thread but that of its loop."""

    def __init__(self, asynchronous: Own, loop: LoopThread) -> None:
        self.asynchronous = asynchronous
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self.asynchronous).replace("<Async", "<", 1)

    def __enter__(self) -> Self:
        return self


def _block_on[Own, **P, T](
    method: Callable[Concatenate[Own, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Twin[Own], P], T]:
    """Return the method as one that blocks the caller until its work is done."""

    @wraps(method)
    def block(self: _Twin[Own], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(method(self.asynchronous, *args, **kwargs))

    return block


class StagedWeights(_Twin[AsyncStagedWeights]):
    """Weights beside the live ones, until they go live, fail a probe, or are released."""

    @property
    def name(self) -> str:
        """The name that the program gave these weights."""
        return self.asynchronous.name

    @property
    def fingerprint(self) -> str:
        """The fingerprint of these weights."""
        return self.asynchronous.fingerprint

    @property
    def loading(self) -> LoadFacts | None:
        """Facts of the load, and the distance from the weights that were live then."""
        return self.asynchronous.loading

    @property
    def is_held(self) -> bool:
        """True while these weights wait beside the live ones."""
        return self.asynchronous.is_held

    @property
    def is_proven(self) -> bool:
        """True once these weights passed the probes."""
        return self.asynchronous.is_proven

    @property
    def generation(self) -> Generation | None:
        """The generation that these weights became; None if they did not go live."""
        return self.asynchronous.generation

    probe = _block_on(AsyncStagedWeights.probe)
    flip = _block_on(AsyncStagedWeights.flip)
    release = _block_on(AsyncStagedWeights.release)

    def __exit__(self, *error: object) -> None:
        self.release()


class HotEngine(_Twin[AsyncHotEngine]):
    """An engine whose weights change while it answers; any thread may call it, several at once."""

    def __init__(
        self,
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
    ) -> None:
        """Start an engine on a model's folder; `args` are further ones of sglang-jax's Engine.

        The folder's weights are checked and pass the probes; `boot="random"` loads none.
        """
        loop = LoopThread()
        self._closing = threading.Lock()
        starting = AsyncHotEngine.start(
            model,
            device=device,
            tp=tp,
            first_device=first_device,
            dtype=dtype,
            args=args,
            probes=probes,
            terms=terms,
            boot=boot,
        )
        try:
            super().__init__(loop.run(starting), loop)
        except BaseException:
            loop.close()
            raise

    # --- new weights --------------------------------------------------------------------------

    def stage(
        self,
        given: GivenWeights,
        name: str = "",
        *,
        names: Names | None = None,
        complete: bool = False,
    ) -> StagedWeights:
        """Check new weights and load them beside the live ones, which go on answering.

        Tensors that a mapping leaves out stay those of the live weights; with `complete` none may
        be left out. `names` finds the Hugging Face name of each array. CheckpointRejected lists
        all that is wrong. The caller's arrays are only read, and are free again on return.
        """
        staging = self.asynchronous.stage(given, name, names=names, complete=complete)
        return StagedWeights(self._loop.run(staging), self._loop)

    update = _block_on(AsyncHotEngine.update)

    def flip(self, staged: StagedWeights) -> Generation:
        """Answer new requests by staged weights; requests under way end by the weights before."""
        check_is_staged(staged, StagedWeights)
        return staged.flip()

    def probe(self, staged: StagedWeights | None = None) -> None:
        """Send the probes to staged weights, or to the live; ProbeFailed lists bad answers."""
        if staged is not None:
            check_is_staged(staged, StagedWeights)
        self._loop.run(self.asynchronous.probe(staged.asynchronous if staged else None))

    rollback = _block_on(AsyncHotEngine.rollback)
    fingerprint_of = _block_on(AsyncHotEngine.fingerprint_of)

    # --- memory for others --------------------------------------------------------------------

    release = _block_on(AsyncHotEngine.release)
    resume = _block_on(AsyncHotEngine.resume)

    @property
    def released(self) -> frozenset[str]:
        """The parts of the engine's memory that are released now: of `kv` and `weights`."""
        return self.asynchronous.released

    # --- what answers -------------------------------------------------------------------------

    @property
    def generation(self) -> Generation:
        """The generation that answers new requests."""
        return self.asynchronous.generation

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the weights that answer new requests."""
        return self.asynchronous.fingerprint

    @property
    def staged(self) -> StagedWeights | None:
        """The weights that wait beside the live ones, if any."""
        staged = self.asynchronous.staged
        return StagedWeights(staged, self._loop) if staged is not None else None

    @property
    def mode(self) -> Mode:
        """The way new weights take over; `drain` if the engine cannot overlap."""
        return self.asynchronous.mode

    @property
    def engine(self) -> Any:
        """sglang-jax's own Engine, only to look at: a request to it would bypass the gate."""
        return self.asynchronous.engine

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Call the observer with each event, in another thread; the returned call ends this."""
        return self.asynchronous.subscribe(observer)

    @overload
    def generate(
        self,
        prompt: Prompt,
        sampling_params: Sampling | None = None,
        *,
        at_least: int = 0,
        **more: Any,
    ) -> Answer: ...

    @overload
    def generate(
        self,
        prompt: SeveralPrompts,
        sampling_params: Sampling | None = None,
        *,
        at_least: int = 0,
        **more: Any,
    ) -> list[Answer]: ...

    def generate(
        self,
        prompt: Prompt | SeveralPrompts,
        sampling_params: Sampling | None = None,
        *,
        at_least: int = 0,
        **more: Any,
    ) -> Answer | list[Answer]:
        """Return the answer, or a list of answers for a list of prompts, each by one generation.

        `more` are further fields of sglang-jax's `/generate`. No generation older than `at_least`
        answers: the request waits for a new one, and NotNewEnough is raised if none comes.
        """
        generate: Any = self.asynchronous.generate  # overloads take no union of what they take
        work = generate(prompt, sampling_params, at_least=at_least, **more)
        answer: Answer | list[Answer] = self._loop.run(work)
        return answer

    def stream(
        self,
        prompt: Prompt | SeveralPrompts,
        sampling_params: Sampling | None = None,
        *,
        at_least: int = 0,
        **more: Any,
    ) -> Iterator[Answer]:
        """Yield the answer in pieces, each with the whole text up to there; closing aborts it."""
        pieces = self.asynchronous.stream(prompt, sampling_params, at_least=at_least, **more)
        try:
            while (piece := self._loop.run(_next(pieces))) is not None:
                yield piece
        finally:
            with suppress(NotServing, BadRequest):  # closed, which ends its answers; or a fork's
                self._loop.run(_close(pieces))

    def abort(self, rid: str | None = None) -> int:
        """End the answers under way, or those of one `rid`; return how many ended."""
        return self._loop.run(self.asynchronous.abort(rid))

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """End the answers and changes under way, then the engine, and free the device.

        Every call returns when the engine has ended; a second call changes nothing.
        """
        if not self._loop.home.is_here:
            return  # the engine is another process's
        self._loop.check_outside()
        with self._closing:
            if self._loop.is_open:
                try:
                    self._loop.run(self.asynchronous.close())
                finally:
                    self._loop.close()

    def __exit__(self, *error: object) -> None:
        self.close()


async def _next(pieces: AsyncGenerator[Answer]) -> Answer | None:
    return await anext(pieces, None)


async def _close(pieces: AsyncGenerator[Answer]) -> None:
    await pieces.aclose()
