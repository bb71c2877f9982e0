"""The same for programs without a loop, and for notebooks, whose own runs already.

Each verb is the asynchronous one, which is waited for: what it promises stands there.
"""

import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Self, overload

from hotreload.engine.answering.answers import Answer
from hotreload.engine.answering.probe import Probe
from hotreload.errors import BadRequest, NotServing
from hotreload.events import Observer
from hotreload.hot.asking import Prompt, Sampling, SeveralPrompts, check_is_staged
from hotreload.hot.asynchronous import AsyncHotEngine
from hotreload.hot.given_weights import GivenWeights
from hotreload.hot.loop_thread import LoopThread
from hotreload.hot.names import Names
from hotreload.hot.staged import AsyncStagedWeights
from hotreload.hot.started import Boot
from hotreload.hot.terms import HotTerms
from hotreload.types import Generation, LoadFacts, Mode


class _Twin[Own]:
    """Stands for an asynchronous object, in any thread but its loop's."""

    def __init__(self, asynchronous: Own, loop: LoopThread) -> None:
        self.asynchronous = asynchronous
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self.asynchronous).replace("<Async", "<", 1)


def _waited[Own, **P, T](
    verb: Callable[Concatenate[Own, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Twin[Own], P], T]:
    """The same verb, which returns when it is done."""

    @wraps(verb)
    def waited(self: _Twin[Own], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(verb(self.asynchronous, *args, **kwargs))

    return waited


class StagedWeights(_Twin[AsyncStagedWeights]):
    """Weights beside the live ones, until they go live, their answers are bad, or `release`."""

    @property
    def name(self) -> str:
        """The name they were given when they were staged."""
        return self.asynchronous.name

    @property
    def fingerprint(self) -> str:
        """The fingerprint that is live once they are."""
        return self.asynchronous.fingerprint

    @property
    def loading(self) -> LoadFacts | None:
        """Facts of their loading, and how far they are from those that were live."""
        return self.asynchronous.loading

    @property
    def is_held(self) -> bool:
        """True while they wait beside the live ones."""
        return self.asynchronous.is_held

    @property
    def is_proven(self) -> bool:
        """True once the probes found their answers good."""
        return self.asynchronous.is_proven

    @property
    def generation(self) -> Generation | None:
        """The generation that they went live as; None if they did not."""
        return self.asynchronous.generation

    probe = _waited(AsyncStagedWeights.probe)
    flip = _waited(AsyncStagedWeights.flip)
    release = _waited(AsyncStagedWeights.release)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


class HotEngine(_Twin[AsyncHotEngine]):
    """An engine whose weights change while it answers; for any thread, and for several at once."""

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
        """Start an engine on a model's folder; `args` are what sglang-jax's Engine takes beside.

        Its weights are checked, and answer the probes; with `boot="random"` there are none yet.
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

        Tensors that are left out of a mapping stay as they are live, unless it is to be `complete`.
        `names` finds the Hugging Face name of each. CheckpointRejected says all that is wrong with
        them. The caller's arrays are only read, and are the caller's again when this returns.
        """
        staging = self.asynchronous.stage(given, name, names=names, complete=complete)
        return StagedWeights(self._loop.run(staging), self._loop)

    update = _waited(AsyncHotEngine.update)

    def flip(self, staged: StagedWeights) -> Generation:
        """Answer by staged weights from now on; those inside end under the weights before."""
        check_is_staged(staged, StagedWeights)
        return staged.flip()

    def probe(self, staged: StagedWeights | None = None) -> None:
        """Ask the probes of staged weights, or of the live ones; ProbeFailed lists bad answers."""
        if staged is not None:
            check_is_staged(staged, StagedWeights)
        self._loop.run(self.asynchronous.probe(staged.asynchronous if staged else None))

    rollback = _waited(AsyncHotEngine.rollback)
    fingerprint_of = _waited(AsyncHotEngine.fingerprint_of)

    # --- memory for others --------------------------------------------------------------------

    release = _waited(AsyncHotEngine.release)
    resume = _waited(AsyncHotEngine.resume)

    @property
    def released(self) -> frozenset[str]:
        """The parts of its memory that others have: of `kv` and `weights`."""
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
        """The way new weights take over; `drain` where the engine cannot overlap."""
        return self.asynchronous.mode

    @property
    def engine(self) -> Any:
        """sglang-jax's own Engine, to look at: requests sent to it would bypass the gate."""
        return self.asynchronous.engine

    def subscribe(self, observer: Observer) -> Callable[[], None]:
        """Have each event of hotreload told, in another thread; the returned call ends that."""
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
        """The answer, or a list of them for a list of prompts; each is by one generation alone.

        `more` is what sglang-jax's `/generate` takes beside. A generation older than `at_least`
        does not answer: it is waited for, then NotNewEnough.
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
        """The same in pieces, each with the whole text so far; closing it aborts the answer."""
        pieces = self.asynchronous.stream(prompt, sampling_params, at_least=at_least, **more)
        try:
            while (piece := self._loop.run(_next(pieces))) is not None:
                yield piece
        finally:
            with suppress(NotServing, BadRequest):  # closed, which ends its answers; or a fork's
                self._loop.run(_closed(pieces))

    def abort(self, rid: str | None = None) -> int:
        """End the answers under way (to prompts that are called so), as they are; how many."""
        return self._loop.run(self.asynchronous.abort(rid))

    # --- the end --------------------------------------------------------------------------------

    def close(self) -> None:
        """End what is under way, and the engine; free the device. Twice is once.

        Every call returns when that is done.
        """
        if not self._loop.home.is_here:
            return  # it is another process's
        self._loop.check_outside()
        with self._closing:
            if self._loop.is_open:
                try:
                    self._loop.run(self.asynchronous.close())
                finally:
                    self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


async def _next(pieces: AsyncGenerator[Answer]) -> Answer | None:
    return await anext(pieces, None)


async def _closed(pieces: AsyncGenerator[Answer]) -> None:
    await pieces.aclose()
