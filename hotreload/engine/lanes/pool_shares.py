"""Shares the rows of requests and the tokens of the KV pool: the older lane comes first.

Upstream counts for one lane: two together would admit more requests than there is room for, and the
engine ends when a lane cannot take its next step. Therefore each lane sees less room than there is:
the rest is kept for the other lanes. If even that is short, the younger lane sends all its requests
back into its own waiting queue. They begin again under the same weights when there is room.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hotreload.engine.lanes.compiled_sizes import CompiledSizes
from hotreload.engine.lanes.kinds import (
    EVERYTHING,
    LaneKind,
    prompt_left,
    tokens_to_come,
    whole_need,
)
from hotreload.engine.lanes.lane import Lane

STEPS_KEPT = 1
"""For how many steps of the older lanes a younger one leaves room beyond those that they take
before it looks again."""


SHADOW_ROWS = 16
"""The number of rows beside those of clients' requests: for prompts that we ask. These never wait
for a client's answer, and take no row of a client."""


class Share:
    """One lane's view of the shared allocator: tokens that are kept for others are not free.

    There is one data rank: engines with more have no lanes.
    """

    def __init__(self, allocator: Any) -> None:
        self._allocator = allocator
        self.kept = 0
        self.has_others = False
        """True if other lanes took tokens of the same pool when this one had its last turn."""
        self.rows = 0
        """The number of requests that might run then."""

    def available_size(self, dp_rank: int = 0) -> int:
        """Tokens that this lane may still take."""
        return max(0, int(self._allocator.available_size()) - self.kept)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._allocator, name)


class PoolShares:
    """Says, each time a lane has its turn, what of the rows and tokens it may take."""

    def __init__(
        self,
        scheduler: Any,
        kind: LaneKind,
        lanes: Sequence[Lane],
        turns_between: Callable[[Lane], int],
        compiled: CompiledSizes,
    ) -> None:
        """`lanes` holds the oldest first, and changes.

        `turns_between` says after how many turns at most a lane looks again.
        """
        self._scheduler = scheduler
        self._kind = kind
        self._lanes = lanes
        self._turns_between = turns_between
        self._compiled = compiled
        self.allocator = scheduler.token_to_kv_pool_allocator
        self.times_given_way = 0
        rows = getattr(scheduler, kind.row_limit)
        lacking = rows + SHADOW_ROWS - scheduler.req_to_token_pool.size
        if lacking > 0:
            _add_rows(scheduler, lacking)

    def admit(self, lane: Lane, admit: Callable[[], Any]) -> Any:
        """The lane's next batch of prompts, made by upstream's `admit`; None when it gets none."""
        if lane.has_own_pool:
            with self._rows_for(lane), self._in_pieces(lane):
                return admit()
        with self._compiled.limit_scheduler(self._scheduler, self._kind.row_limit) as rows:
            return self._admit(lane, rows, admit)

    def _admit(self, lane: Lane, rows: int, admit: Callable[[], Any]) -> Any:
        others = [each for each in self._lanes if each is not lane and not each.has_own_pool]
        share = lane.look("token_to_kv_pool_allocator")
        if others or share.has_others or share.rows < rows:
            # Upstream looks for room again only when a request of the lane's own has ended.
            self._kind.note_room(self._scheduler)
        share.has_others, share.rows = bool(others), rows
        older = others[: self._age(lane)]
        steps = STEPS_KEPT + self._turns_between(lane)
        share.kept = sum(self._next_steps(each, steps) for each in older)
        if older and self._is_short(lane, share.kept):
            self.times_given_way += 1
            self._kind.retract(self._scheduler)
            return None
        self._send_back_what_finds_no_room(lane)
        return self._admitted_beside(lane, share, others, admit) if others else admit()

    def _age(self, lane: Lane) -> int:
        sharing = [each for each in self._lanes if not each.has_own_pool]
        return sharing.index(lane)

    def _admitted_beside(
        self, lane: Lane, share: Share, others: Sequence[Lane], admit: Callable[[], Any]
    ) -> Any:
        """Admit only what leaves the others what their requests are likely to need."""
        kept = share.kept
        older = others[: self._age(lane)]
        share.kept = max(kept, sum(map(self._growth, others)) + sum(map(self._first_need, older)))
        if waits := bool(lane.look("waiting_queue")):
            self._free(lane, share.kept)
        try:
            with self._rows_for(lane):
                admitted = admit()
        finally:
            share.kept = kept
        if waits and admitted is None and not self._kind.list_running(lane.look):
            self._forget_prefixes(others)  # what nobody uses now must not keep it waiting
        return admitted

    def _forget_prefixes(self, lanes: Sequence[Lane]) -> None:
        for lane in lanes:
            self._kind.evict(lane.look("tree_cache"), EVERYTHING)

    def _first_need(self, lane: Lane) -> int:
        """Tokens that the first request that waits in an older lane needs to be admitted."""
        waiting = lane.look("waiting_queue")
        return whole_need(waiting[0]) if waiting else 0

    def _is_short(self, lane: Lane, kept: int) -> bool:
        """Say if this lane can take no step without taking what the older ones need next."""
        self._free(lane, kept + self._own_step(lane))
        return bool(self.allocator.available_size() < kept + self._own_step(lane))

    def _own_step(self, lane: Lane) -> int:
        """Tokens the lane needs to go on: a page for one request, and its piece of prompt."""
        is_running = bool(self._kind.list_running(lane.look))
        return is_running * int(self._scheduler.page_size) + self._piece(lane)

    def _free(self, lane: Lane, tokens: int) -> None:
        """Evict cached prefixes of this lane until so many tokens are free, if there are such."""
        lacking = tokens - self.allocator.available_size()
        if lacking > 0:
            self._kind.evict(lane.look("tree_cache"), lacking)

    def _send_back_what_finds_no_room(self, lane: Lane) -> None:
        """Send a prompt back that is half computed, if its next piece finds no room.

        Upstream takes that for impossible: 0.0.2 goes on with no tokens, the newer engine ends.
        """
        piece, allocator = self._piece(lane), lane.look("token_to_kv_pool_allocator")
        if piece and allocator.available_size() < piece:
            self._kind.evict(lane.look("tree_cache"), piece)
            if allocator.available_size() < piece:
                self._kind.retract_chunked(self._scheduler)

    def _next_steps(self, lane: Lane, steps: int) -> int:
        """Tokens that this lane takes in so many steps."""
        running = len(self._kind.list_running(lane.look))
        return steps * running * int(self._scheduler.page_size) + self._piece(lane)

    def _piece(self, lane: Lane) -> int:
        """Tokens of the next piece of the prompt that is computed piece by piece."""
        request = self._kind.find_chunked(lane.look)
        if request is None:
            return 0
        page = int(self._scheduler.page_size)
        return min(prompt_left(request), int(self._scheduler.chunked_prefill_size)) + page

    def _growth(self, lane: Lane) -> int:
        """Tokens that the requests of this lane are likely to need before they end."""
        ratio, chunked = lane.look("new_token_ratio"), self._kind.find_chunked(lane.look)
        growth = sum(tokens_to_come(each, ratio) for each in self._kind.list_running(lane.look))
        left = prompt_left(chunked) + tokens_to_come(chunked, ratio) if chunked is not None else 0
        return int(growth + left)

    def _rows_of_shadows(self) -> int:
        shadows = (each for each in self._lanes if each.has_own_pool)
        return sum(len(self._kind.list_running(each.look)) for each in shadows)

    @contextmanager
    def _rows_for(self, lane: Lane) -> Iterator[None]:
        """Bound how many requests run by the rows that are free: there are rows for one lane."""
        scheduler, name = self._scheduler, self._kind.row_limit
        free = len(scheduler.req_to_token_pool.free_slots)
        kept = SHADOW_ROWS - self._rows_of_shadows()
        free = min(free, kept) if lane.has_own_pool else free - kept
        running, most = scheduler.running_batch.batch_size(), getattr(scheduler, name)
        setattr(scheduler, name, min(most, running + max(0, free)))
        try:
            yield
        finally:
            setattr(scheduler, name, most)

    @contextmanager
    def _in_pieces(self, lane: Lane) -> Iterator[None]:
        """Compute prompts for weights that are proven in pieces of the smallest size.

        The clients' next token waits for each piece: all questions at once took as long as a
        hundred steps. Small pieces also bound the logits that noting expectations takes.
        """
        scheduler = self._scheduler
        chunk, page = scheduler.chunked_prefill_size, int(scheduler.page_size)
        lanes = (each for each in self._lanes if not each.has_own_pool)
        is_beside = bool(chunk) and any(self._kind.list_running(each.look) for each in lanes)
        if is_beside or lane.prompts:
            tokens, _, _ = scheduler.tp_worker.get_precompile_paddings()
            scheduler.chunked_prefill_size = max(tokens[0] // page * page, page)
        try:
            yield
        finally:
            scheduler.chunked_prefill_size = chunk


def _add_rows(scheduler: Any, count: int) -> None:
    """0.1.0rc0 has as many rows as requests may run, and a slot each for its token in flight."""
    pool = scheduler.req_to_token_pool
    pool.req_to_token = np.pad(pool.req_to_token, ((0, count), (0, 0)))
    pool.free_slots += range(pool.size, pool.size + count)
    pool.size += count
    worker = scheduler.tp_worker
    if hasattr(worker, "future_map_size"):
        worker.future_map_size += count
        slots = jnp.zeros((worker.future_map_size,), jnp.int32)
        worker.future_token_ids_map = jax.device_put(slots, worker.future_token_ids_map.sharding)
