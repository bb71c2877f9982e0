"""Weights that a program has staged: they wait beside the live ones."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Self

from hotreload.core.progress import AttemptProgress
from hotreload.errors import BadRequest, CheckpointRejected, EngineLost
from hotreload.threads import run_to_end
from hotreload.types import Generation, LoadFacts, Staged


class Hold:
    """The device memory that staged weights take, until they go live or are released."""

    def __init__(self, weights: Staged, frees: AsyncExitStack) -> None:
        """The exit of `frees` frees the spare set: these weights, unless they went live."""
        self.weights: Staged | None = weights
        """The weights; None once they are released or live."""
        self._frees = frees

    async def discard(self, error: Exception | None = None) -> None:
        """Free the set of weights that is spare now; with a lost engine nothing is touched."""
        if self.weights is not None:
            self.weights = None
            trace = error.__traceback__ if error else None
            await self._frees.__aexit__(type(error) if error else None, error, trace)


class AsyncStagedWeights:
    """Weights beside the live ones, until they go live, fail a probe, or are released.

    They are released, too, once the program has dropped its last reference to them.
    """

    def __init__(
        self,
        weights: Staged,
        hold: Hold,
        *,
        prove: Callable[[Staged], Awaitable[None]],
        go_live: Callable[[Staged, bool], Awaitable[None]],
        progress: AttemptProgress,
        why_unprovable: str | None,
        turn: Callable[[int | None], AbstractAsyncContextManager[None]],
        one_at_a_time: asyncio.Lock,
    ) -> None:
        """`go_live` with True proves weights that can be proven only once they are live."""
        self.name = weights.revision.label
        self.fingerprint = weights.fingerprint
        self.loading: LoadFacts | None = weights.loading
        """Facts of the load, and the distance from the weights that were live then."""
        self.is_proven = False
        """True once these weights passed the probes."""
        self._hold = hold
        self._prove = prove
        self._go_live = go_live
        self._progress = progress
        self._why_unprovable = why_unprovable
        self._turn = turn
        self._one_at_a_time = one_at_a_time

    @property
    def is_held(self) -> bool:
        """True while these weights wait beside the live ones."""
        return self._hold.weights is not None

    @property
    def generation(self) -> Generation | None:
        """The generation that these weights became; None if they did not go live."""
        return self._progress.generation

    async def probe(self) -> None:
        """Send the probes to these weights; after ProbeFailed the weights are released."""
        async with self._turn(None), self._release_if_bad():
            weights = self._held_weights()
            if self._why_unprovable is not None:
                raise BadRequest(
                    f"{self.name} can be asked only once it is live, which flip does, and goes "
                    f"back if an answer is bad: {self._why_unprovable}"
                )
            await self._prove_once(weights)

    async def flip(self) -> Generation:
        """Answer new requests by these weights; unproven ones must pass the probes first.

        After ProbeFailed the weights are released. After any other error they are held as before.
        """
        return await self.flip_since(None)

    async def flip_since(self, since: int | None, *, prove: bool = True) -> Generation:
        """Flip for an update; Superseded if the rollbacks are more than `since`.

        Without `prove` the probes are skipped.
        """
        async with self._turn(since), self._release_if_bad():
            weights = self._held_weights()
            if prove:
                await self._prove_once(weights)
            try:
                await self._go_live(weights, prove)
            finally:
                if self.generation is not None:  # also when it was cancelled meanwhile
                    self.is_proven = self.is_proven or prove
                    await run_to_end(self._hold.discard())
        assert self.generation is not None, "the switch says what they are live as"
        return self.generation

    async def release(self) -> None:
        """Free the weights, unless they went live or were released before."""
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

    async def __aexit__(self, *error: object) -> None:
        await self.release()

    def _held_weights(self) -> Staged:
        if self._hold.weights is not None:
            return self._hold.weights
        live = self.generation
        became = "was released" if live is None else f"went live as generation {live.number}"
        raise BadRequest(f"{self.name} is no longer staged: it {became}")

    async def _prove_once(self, weights: Staged) -> None:
        """Send the probes, unless these weights passed already or can pass only once live."""
        if not self.is_proven:
            await self._prove(weights)
            self.is_proven = self._why_unprovable is None

    @asynccontextmanager
    async def _release_if_bad(self) -> AsyncIterator[None]:
        try:
            yield
        except (CheckpointRejected, EngineLost) as error:
            with suppress(CheckpointRejected, EngineLost):
                await self._hold.discard(error)
            raise
