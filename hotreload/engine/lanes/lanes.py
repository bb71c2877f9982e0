"""The lanes of one engine: start here.

Hooks into upstream's scheduler where a turn begins, a request arrives, prompts are admitted, a
batch is launched and a request is aborted. All of it runs on the scheduler thread.
"""

import logging
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count
from typing import Any

from hotreload.engine.lanes.along import note_along, parts_of
from hotreload.engine.lanes.bound_leaves import LeafBinder
from hotreload.engine.lanes.compiled_sizes import CompiledSizes, has_plain_prompts
from hotreload.engine.lanes.kinds import EVERYTHING, empty_like, find_kind
from hotreload.engine.lanes.lane import Bound, Lane, Rotation, lane_of
from hotreload.engine.lanes.pool_shares import PoolShares, Share
from hotreload.engine.lanes.turn_shares import TurnShares
from hotreload.engine.slots import find_slot
from hotreload.types import Shares

log = logging.getLogger("hotreload.lanes")


class Lanes:
    """One lane for each generation that answers, and one in which weights are proven."""

    def __init__(self, scheduler: Any, shares: Shares) -> None:
        self._scheduler = scheduler
        kind = find_kind(scheduler)
        assert kind is not None, "`why_no_lanes` saw to it"
        self._kind = kind
        self._numbers = count(1)
        runner = scheduler.tp_worker.get_model_runner()
        note_along(runner)
        self._binding = LeafBinder(runner, find_slot(runner))
        first = Lane(scheduler, 0, self._binding.current())
        self._resting = TurnShares(first, shares, has_work=self._has_work, running=self._running_in)
        self._rotation = Rotation(
            first,
            kind.fields(scheduler),
            may_launch=self._may_launch,
            awaits_result=self._awaits_result,
            is_spent=self._is_spent,
            on_end=self._end_lane,
        )
        self.compiled = CompiledSizes(scheduler.page_size)
        """Sizes that batches of clients find programs for."""
        turns_between, lanes = self._resting.turns_between, self._rotation.lanes
        self._sharing = PoolShares(scheduler, kind, lanes, turns_between, self.compiled)
        self._share_from_the_start()
        self._hook()

    def prepare(self, leaves: list[Any], beside: int) -> Bound:
        """All that a lane for these weights computes with, beside one that does not end meanwhile.

        In any thread: others may end.
        """
        return self._binding.beside(self._lane(beside).bound, leaves)

    # --- what the adapter asks for, on the scheduler thread -----------------------------------

    def open(self, ready: Bound) -> int:
        """A new lane for what `prepare` made; returns the number by which requests name it."""
        scheduler = self._scheduler
        share = Share(self._sharing.allocator)
        tree = empty_like(scheduler.tree_cache, share)
        state = self._kind.fresh(scheduler, tree, share)
        return self._add(Lane(scheduler, next(self._numbers), ready), state)

    def make_live(self, number: int) -> None:
        """New requests are admitted to this lane from now on; those before it may rest."""
        self._resting.live = self._lane(number)

    def open_shadow(
        self,
        leaves: list[Any],
        kv_pool: Any,
        allocator: Any,
        *,
        prompts: int = 1,
        rows: int = 1,
        places: int = 0,
        along: Any = None,
    ) -> int:
        """A lane of weights that no client is admitted to, with a KV pool of its own.

        It begins when so many prompts have come, and computes them in one batch; 0 where they come
        and go. `along` is called at each of its steps. All are padded to so many `rows`, and name
        so many `places`; 0 where they name as many as clients' do.
        """
        scheduler = self._scheduler
        state = self._kind.fresh(scheduler, empty_like(scheduler.tree_cache, allocator), allocator)
        own = self._binding.with_pool(self._serving_lane.bound, leaves, kv_pool)
        own.along = along
        how: dict[str, Any] = {"prompts": prompts, "rows": rows, "places": places}
        return self._add(Lane(scheduler, next(self._numbers), own, has_own_pool=True, **how), state)

    def hurry(self, number: int, steps: int, since: float) -> None:
        """Have a proof of so many steps, asked for so many seconds, end in time; if it goes on."""
        if (lane := self._find(number)) is not None:
            self._resting.hurry(lane, steps, since)

    def end(self, number: int) -> Future[None]:
        """End the lane as soon as no request is left in it; no new one is admitted."""
        lane, ended = self._lane(number), Future[None]()
        ended.set_running_or_notify_cancel()
        lane.ended = ended
        return ended

    def exchange(self, leaves: list[Any]) -> None:
        """Let the only lane compute with other leaves; only while nothing is under way."""
        (lane,) = self._rotation.lanes
        before, lane.bound = lane.bound, self._binding.beside(lane.bound, leaves)
        self._binding.bind(lane.bound)
        self._binding.unbind(before, lane.bound)

    def forget_prefixes(self) -> None:
        """Forget all that the other lanes have cached; only while nothing is under way."""
        for lane in self._rotation.lanes:
            if lane is not self._rotation.current and not lane.has_own_pool:
                lane.look("tree_cache").reset()
        self._binding.bind(self._serving_lane.bound)

    def forget_unused(self) -> int:
        """Drop the serving lanes' cached prefixes that no request uses; return their tokens."""
        trees = [lane.look("tree_cache") for lane in self.serving_lanes]
        tokens = sum(int(tree.evictable_size()) for tree in trees)
        for tree in trees:
            self._kind.evict(tree, EVERYTHING)
        return tokens

    @property
    def serving_lanes(self) -> list[Lane]:
        """The lanes of clients' requests: all that share the pool."""
        return [lane for lane in self._rotation.lanes if not lane.has_own_pool]

    @property
    def allocator(self) -> Any:
        """The allocator of the KV pool that all serving lanes share."""
        return self._sharing.allocator

    # --- what the scheduler thread asks for ---------------------------------------------------

    def turn(self) -> None:
        """Hand the turn to the next lane; the first thing in each turn of the event loop."""
        self._rotation.turn()

    @property
    def are_others_idle(self) -> bool:
        """True when all lanes but the one that has its turn have nothing left to do."""
        current, lanes = self._rotation.current, list(self._rotation.lanes)
        return all(each is current or self._is_spent(each) for each in lanes)

    @property
    def only_gather(self) -> bool:
        """True while nothing is left to do but to wait for prompts that are to come."""
        return all(each.awaits_prompts or self._is_spent(each) for each in self._rotation.lanes)

    @property
    def has_ending(self) -> bool:
        """True while a lane is to end, so that the loop must turn."""
        return any(lane.is_ending for lane in self._rotation.lanes)

    # --- hooks --------------------------------------------------------------------------------

    def _share_from_the_start(self) -> None:
        """Let the first lane see the pool as all others do: through a share of its own."""
        scheduler = self._scheduler
        share = Share(self._sharing.allocator)
        scheduler.token_to_kv_pool_allocator = share
        scheduler.tree_cache.token_to_kv_pool_allocator = share
        fresh = self._kind.fresh(scheduler, scheduler.tree_cache, share)
        scheduler.running_batch = fresh["running_batch"]

    def _hook(self) -> None:
        scheduler = self._scheduler
        self._binding.travel_with_batches(scheduler.tp_worker, self._note_launch)
        admit, abort = scheduler.get_new_batch_prefill, scheduler.abort_request
        scheduler.get_new_batch_prefill = lambda: self._sharing.admit(self._rotation.current, admit)
        scheduler.get_next_batch_to_run = self._hook_next_batch(scheduler.get_next_batch_to_run)
        worker = scheduler.tp_worker
        worker.get_precompile_paddings = self._padding(worker.get_precompile_paddings)
        self._replace_handler(abort, self._hook_abort(abort))
        scheduler._add_request_to_queue = self._by_lease(scheduler._add_request_to_queue)
        scheduler._extend_requests_to_queue = self._each_by_lease(scheduler)
        for check in ("check_memory", "check_tree_cache"):
            setattr(scheduler, check, self._when_alone(getattr(scheduler, check)))

    def _hook_next_batch(self, next_batch: Callable[[], Any]) -> Callable[[], Any]:
        """Launch nothing for a lane that rests, or that still waits for its prompts."""

        def launch_or_rest() -> Any:
            lane = self._rotation.current
            lane.gathers = lane.awaits_prompts
            if lane.rests or lane.gathers or self._only_collects(lane):
                lane.rest()
                return None
            batch = next_batch()
            lane.note_merged()
            if batch is not None and lane.bound.along is not None:
                requests, is_prompt = self._kind.requests_of(batch), batch.forward_mode.is_extend()
                lane.bound.along.note_launch(parts_of(requests, is_prompt=is_prompt))
            return batch

        return launch_or_rest

    def _only_collects(self, lane: Lane) -> bool:
        """Say if the result that is to come ends all that is asked in a lane, and nothing follows.

        Upstream launches one more step before it has that result, which the next request waits for.
        """
        if not self._awaits_result(lane):
            return False
        last = lane.look("last_batch")
        # Prompts are still to be merged, for which a lane that serves alone has no other turn.
        if not lane.prompts and (last is None or last.forward_mode.is_extend()):
            return False
        if lane.look("waiting_queue") or self._kind.find_chunked(lane.look):
            return False
        return all(
            each.sampling_params.max_new_tokens <= len(each.output_ids) + 1
            for each in self._kind.list_running(lane.look)
        )

    def _note_launch(self, batch: Any) -> Bound:
        """Note a launched batch; return the leaves and pool of the lane that has the turn."""
        lane = self._rotation.current
        if not lane.has_own_pool:
            self.compiled.note_launched(batch)
        return lane.bound

    def _padding(self, paddings: Callable[[], Any]) -> Callable[[], Any]:
        """Return the size that a batch is padded to: a compiled one, or that of the lane."""

        def paddings_of_lane() -> Any:
            lane, (tokens, batches, places) = self._rotation.current, paddings()
            if lane.has_own_pool:
                return tokens, *lane.to_pad_to(batches, places)
            batch = self._scheduler.cur_batch  # that is to be launched
            prompts = self._kind.requests_of(batch) if has_plain_prompts(batch) else ()
            return self.compiled.to_pad_to(tokens, batches, places, prompts)

        return paddings_of_lane

    def _by_lease(self, add: Callable[[Any], None]) -> Callable[[Any], None]:
        """A request goes to the lane it was admitted to, whichever has its turn when it comes."""

        def add_by_lease(request: Any) -> None:
            lane = self._find(lane_of(request.rid))
            if lane is None:
                self._turn_away(request)
                return
            if lane.bound.along is not None:
                request.adjust_max_prefix_ids = list  # what is cached is not computed, nor noted
            with self._rotation.visit(lane):
                add(request)

        return add_by_lease

    def _turn_away(self, request: Any) -> None:
        """A lease outlives its lane by a fault of ours; it must not end the engine."""
        from sgl_jax.srt.managers.io_struct import AbortReq

        log.error("lanes.unknown", extra={"rid": request.rid})
        self._scheduler.send_to_tokenizer.send_pyobj(AbortReq(rid=request.rid))

    def _each_by_lease(self, scheduler: Any) -> Callable[..., None]:
        def extend(requests: list[Any], is_retracted: bool = False) -> None:
            for request in requests:
                lane = self._lane(lane_of(request.rid))
                lane.look("waiting_queue").append(request)

        return extend

    def _hook_abort(self, abort: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return an abort that looks for the request in every lane."""

        def abort_everywhere(message: Any) -> None:
            for lane in list(self._rotation.lanes):
                with self._rotation.visit(lane):
                    abort(message)

        return abort_everywhere

    def _replace_handler(self, old: Callable[..., Any], new: Callable[..., Any]) -> None:
        self._scheduler.abort_request = new
        mapping = self._scheduler._request_dispatcher._mapping
        mapping[:] = [(kind, new if fn == old else fn) for kind, fn in mapping]

    def _when_alone(self, check: Callable[[], None]) -> Callable[[], None]:
        """Upstream counts one lane's tokens and rows, and takes those of others for a leak."""

        def check_when_alone() -> None:
            if len(self._rotation.lanes) == 1:
                check()

        return check_when_alone

    # --- lanes --------------------------------------------------------------------------------

    def _add(self, lane: Lane, state: dict[str, Any]) -> int:
        lane.leave_with(state)
        self._rotation.add(lane)
        return lane.number

    @property
    def _serving_lane(self) -> Lane:
        """A serving lane that is not ending."""
        lanes = self._rotation.lanes
        return next(lane for lane in lanes if not (lane.has_own_pool or lane.is_ending))

    def _find(self, number: int) -> Lane | None:
        there = tuple(self._rotation.lanes)  # another thread's may look, while a lane ends
        return next((lane for lane in there if lane.number == number), None)

    def _lane(self, number: int) -> Lane:
        lane = self._find(number)
        assert lane is not None, f"there is no lane {number}"
        return lane

    def _is_spent(self, lane: Lane) -> bool:
        return self._kind.is_spent(lane.look)

    def _may_launch(self, lane: Lane) -> bool:
        return self._resting.may_launch(lane, self._rotation.lanes)

    def _has_work(self, lane: Lane) -> bool:
        """Say if it could launch something; prompts that are to go together wait for the last."""
        if lane.gathers:
            return False
        waits = lane.look("waiting_queue") or self._kind.find_chunked(lane.look)
        return bool(waits) or self._running_in(lane) > 0

    def _running_in(self, lane: Lane) -> int:
        return len(self._kind.list_running(lane.look))

    def _awaits_result(self, lane: Lane) -> bool:
        """Without overlap scheduling a lane collects its result in the turn of its launch."""
        return bool(self._scheduler.enable_overlap and lane.look("result_queue"))

    def _end_lane(self, lane: Lane) -> None:
        """Give back the pages of a lane's cached prefixes: no request will match them again."""
        if not lane.has_own_pool:
            self._kind.evict(lane.look("tree_cache"), EVERYTHING)
        self._binding.unbind(lane.bound, self._serving_lane.bound)
        assert lane.ended is not None, "only a lane that is given up ends"
        lane.ended.set_result(None)
