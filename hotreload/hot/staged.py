"""Weights that wait beside the live ones, in the hands of a program."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from types import TracebackType
from typing import Self

from hotreload.core.progress import AttemptProgress
from hotreload.errors import BadRequest, CheckpointRejected, EngineLost
from hotreload.threads import run_to_end
from hotreload.types import Generation, LoadFacts, Staged

SwitchStep = Callable[[Staged], Awaitable[None]]
"""One that a switch takes with staged weights, or raises why not."""
LastStep = Callable[[Staged, bool], Awaitable[None]]
"""The one that makes them live; where they can be proven only then they are, if so wished."""


class Hold:
    """The room that staged weights take, until they go live or are released."""

    def __init__(self, weights: Staged, frees: AsyncExitStack) -> None:
        """`frees` puts away what is spare at its exit: these weights, unless they went live."""
        self.weights: Staged | None = weights
        """The weights; None once they are not held any more."""
        self._frees = frees

    async def discard(self, error: Exception | None = None) -> None:
        """Have the switch put away what is spare now; of a lost engine it touches nothing."""
        if self.weights is not None:
            self.weights = None
            trace = error.__traceback__ if error else None
            await self._frees.__aexit__(type(error) if error else None, error, trace)


class AsyncStagedWeights:
    """Held until they go live, their answers are bad, they are released, or nobody has them."""

    def __init__(
        self,
        weights: Staged,
        hold: Hold,
        *,
        prove: SwitchStep,
        go_live: LastStep,
        progress: AttemptProgress,
        why_unprovable: str | None,
        turn: Callable[[int | None], AbstractAsyncContextManager[None]],
        one_at_a_time: asyncio.Lock,
    ) -> None:
        self.name = weights.revision.label
        self.fingerprint = weights.fingerprint
        self.loading: LoadFacts | None = weights.loading
        """Facts of their loading, and how far they are from those that were live."""
        self.is_proven = False
        """True once the probes found their answers good."""
        self._hold = hold
        self._prove = prove
        self._go_live = go_live
        self._progress = progress
        self._why_unprovable = why_unprovable
        self._turn = turn
        self._one_at_a_time = one_at_a_time

    @property
    def is_held(self) -> bool:
        """True while they wait beside the live ones."""
        return self._hold.weights is not None

    @property
    def generation(self) -> Generation | None:
        """The generation that they went live as; None if they did not."""
        return self._progress.generation

    async def probe(self) -> None:
        """Ask the probes, where nobody sees the answers; ProbeFailed, and they are released."""
        async with self._turn(None), self._released_when_bad():
            weights = self._waiting()
            if self._why_unprovable is not None:
                raise BadRequest(
                    f"{self.name} can be asked only once it is live, which flip does, and goes "
                    f"back if an answer is bad: {self._why_unprovable}"
                )
            await self._make_sure(weights)

    async def flip(self) -> Generation:
        """Answer by them from now on; those that are unproven are proven first, or not flipped to.

        ProbeFailed, and they are released. After any other error they are held as before.
        """
        return await self.flip_since(None)

    async def flip_since(self, since: int | None, *, prove: bool = True) -> Generation:
        """Flip for an update, when so many rollbacks had been asked for; Superseded after more.

        They are not proven where the program does not wish it.
        """
        async with self._turn(since), self._released_when_bad():
            weights = self._waiting()
            if prove:
                await self._make_sure(weights)
            try:
                await self._go_live(weights, prove)
            finally:
                if self.generation is not None:  # also when it was cancelled meanwhile
                    self.is_proven = self.is_proven or prove
                    await run_to_end(self._hold.discard())
        assert self.generation is not None, "the switch says what they are live as"
        return self.generation

    async def release(self) -> None:
        """Free them, unless they went live or were released before."""
        async with self._one_at_a_time:
            await self._hold.discard()

    def __repr__(self) -> str:
        waits = "waits, proven" if self.is_proven else "waits, unproven"
        became = waits if self.is_held else "released"
        if self.generation is not None:
            became = f"live as generation {self.generation.number}"
        return f"<{type(self).__name__}: {self.name} ({self.fingerprint}), {became}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.release()

    def _waiting(self) -> Staged:
        if self._hold.weights is not None:
            return self._hold.weights
        live = self.generation
        became = "was released" if live is None else f"went live as generation {live.number}"
        raise BadRequest(f"{self.name} is no longer staged: it {became}")

    async def _make_sure(self, weights: Staged) -> None:
        """Ask the probes, once, where they can be asked before anything is live."""
        if not self.is_proven:
            await self._prove(weights)
            self.is_proven = self._why_unprovable is None

    @asynccontextmanager
    async def _released_when_bad(self) -> AsyncIterator[None]:
        try:
            yield
        except (CheckpointRejected, EngineLost) as error:
            with suppress(CheckpointRejected, EngineLost):
                await self._hold.discard(error)
            raise
