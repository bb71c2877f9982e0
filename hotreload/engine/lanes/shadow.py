"""A small KV pool in which weights are proven: no client's answer reads it, not even NaN in it."""

import copy
from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from hotreload.engine.lanes.compiled_sizes import MANY_PLACES
from hotreload.engine.lanes.kinds import of_another_size
from hotreload.engine.lanes.pool_shares import SHADOW_ROWS

WHOLE_BYTES = 64 * 2**20
"""Up to this size a pool is as large as the one that serves: then the programs that serve fit it
too, and nothing more is to be compiled, unless prompts that serve name many places of it. It takes
memory only while weights are proven."""


class ShadowPool:
    """Makes the pool of the lane in which weights are proven, and knows its size."""

    def __init__(
        self,
        allocator: Any,
        asked: Sequence[int],
        candidate: Sequence[int] = (),
        computed: int = 0,
        probes: int = 1,
    ) -> None:
        """`asked` has for each prompt of our largest batch how many tokens it takes in all.

        `candidate` has that of a candidate's requests. `computed` is the most places that attention
        is computed to, whatever a batch holds. `probes` is the most that are asked together.
        """
        self._allocator = allocator
        self._pool = allocator.get_kvcache()
        self.page = int(allocator.page_size)
        needed, whole = self._room_for(asked), int(allocator.size)
        is_large = sum(each.nbytes for each in self._pool.kv_buffer) > WHOLE_BYTES
        self.has_own_programs = is_large or computed > MANY_PLACES
        """True where programs must be compiled for probes, because their sizes are its own."""
        most = max(needed, self._room_for(candidate)) if is_large else needed
        self.tokens = min(most, whole) if self.has_own_programs else whole
        self.candidate_tokens = self.tokens if is_large else whole
        """Those of a candidate's pool."""
        self._places = min(needed, self.tokens) if computed else 0
        self._has_candidate = bool(candidate)
        self._probes = probes

    def holds_probes(self, needs: Sequence[int]) -> bool:
        """Say if probes that take so many tokens can be asked together in a compiled size."""
        names_few = bool(self.places_of(is_noted=False))
        return self.holds(needs) and not (names_few and len(needs) > self._probes)

    def holds(self, needs: Sequence[int]) -> bool:
        """Say if prompts that take so many tokens find room in it together."""
        return self._room_for(needs) <= (self._places or self.tokens)

    def places_of(self, *, is_noted: bool) -> int:
        """The places that a batch which we ask names; 0 for as many as one that serves.

        Batches whose expectations are noted have programs of their own in any case.
        """
        return self._places if is_noted or self.has_own_programs else 0

    def rows_of(self, prompts: int, *, is_noted: bool) -> int:
        """Return how many rows each step of our batch has; `prompts` is 0 where they come and go.

        Probes have as many as at the start. A row takes time, an empty one too; and for another
        number of rows programs would have to be compiled.
        """
        if is_noted or not prompts:
            return SHADOW_ROWS
        return max(prompts, self._probes) if self.places_of(is_noted=False) else prompts

    def room_for_each_of(self, prompts: int) -> int:
        """Return how many tokens each of so many prompts may take that find room together."""
        page = self.page
        return max(0, (self.tokens - page) // prompts // page * page - 1)

    @property
    def longest(self) -> int:
        """The most tokens that one prompt and its answer may take where a candidate answers."""
        return (self.candidate_tokens // self.page - 1) * self.page - 1

    @property
    def buffers(self) -> list[jax.ShapeDtypeStruct]:
        """The arrays of it that take memory while weights are proven."""
        return self._buffers(self.candidate_tokens if self._has_candidate else self.tokens)

    def _buffers(self, tokens: int) -> list[jax.ShapeDtypeStruct]:
        return [
            _describe_array((self._rows(each, tokens), *each.shape[1:]), each.dtype, each.sharding)
            for each in self._pool.kv_buffer
        ]

    def describe(self) -> Any:
        """The pool as the compiler sees it; it takes no memory."""
        pool = copy.copy(self._pool)
        pool.size, pool.kv_buffer = self.tokens, self._buffers(self.tokens)
        return pool

    def make(self, *, is_candidates: bool = False) -> tuple[Any, Any]:
        """A pool of zeros, and the allocator of its tokens."""
        pool = copy.copy(self._pool)
        pool.size = tokens = self.candidate_tokens if is_candidates else self.tokens
        pool.kv_buffer = [_zeros(e.shape, e.dtype, e.sharding)() for e in self._buffers(tokens)]
        return pool, of_another_size(self._allocator, tokens, pool)

    def free(self) -> None:
        """Hold nothing of the engine any more: an error may hold this object."""
        del self._allocator, self._pool

    def _room_for(self, needs: Sequence[int]) -> int:
        """A token more than each, and a page: upstream admits what leaves something free."""
        page = self.page
        return sum(-(-(tokens + 1) // page) * page for tokens in needs) + page

    def _rows(self, buffer: Any, tokens: int) -> int:
        """0.0.2 has a row for each token, the newer engine one for each page."""
        per_row = 1 if buffer.shape[0] == self._pool.size + self.page else self.page
        return int(buffer.shape[0] - (self._pool.size - tokens) // per_row)


def _describe_array(shape: tuple[int, ...], dtype: Any, sharding: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)  # type: ignore[no-untyped-call]


@cache
def _zeros(shape: tuple[int, ...], dtype: Any, sharding: Any) -> Any:
    return jax.jit(lambda: jnp.zeros(shape, dtype), out_shardings=sharding)
