"""Differences between the generations of sglang-jax that matter to lanes: one small class each.

`find_kind` chooses one by looking at the objects. A kind knows where a scheduler keeps what a turn
leaves for the next one, which requests hold rows and KV pages, and how to take those back.
"""

import copy
import inspect
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

LaneLook = Callable[[str], Any]
"""One field of a lane's state by its name."""

COMMON_FIELDS = (
    "running_batch",
    "last_batch",
    "cur_batch",
    "waiting_queue",
    "tree_cache",
    "token_to_kv_pool_allocator",
    "policy",
    "new_token_ratio",
)
"""State that both versions leave for the next turn; with overlap a queue of results, too."""

EVERYTHING = 1 << 30
"""More tokens than any cache has."""

MOST_NEW = 4096
"""Of how many tokens to come upstream takes account for one request."""


class LaneKind(Protocol):
    """A lane's state as one generation of sglang-jax keeps it."""

    row_limit: str
    """The scheduler's field that bounds how many requests run."""

    def fields(self, scheduler: Any) -> Sequence[str]:
        """The names of the fields that belong to one lane."""
        ...

    def fresh(self, scheduler: Any, tree: Any, allocator: Any) -> dict[str, Any]:
        """The state of a lane in which nothing has happened yet."""
        ...

    def requests_of(self, batch: Any) -> list[Any]:
        """The requests of a batch, in the order of its rows."""
        ...

    def list_running(self, look: LaneLook) -> list[Any]:
        """The requests that hold rows and grow by a token a step."""
        ...

    def find_chunked(self, look: LaneLook) -> Any:
        """The request whose prompt is computed piece by piece; None when there is none."""
        ...

    def is_spent(self, look: LaneLook) -> bool:
        """Say if nothing runs or waits, and no result is still to come."""
        ...

    def evict(self, tree: Any, tokens: int) -> None:
        """Free so many tokens of cached prefixes that no request uses now."""
        ...

    def note_room(self, scheduler: Any) -> None:
        """Let the lane that has its turn look again for room for another request."""
        ...

    def retract(self, scheduler: Any) -> None:
        """Send all that runs back into the waiting queue, where it begins again."""
        ...

    def retract_chunked(self, scheduler: Any) -> None:
        """Send the request whose prompt is half computed back into the waiting queue."""
        ...


class FirstRelease:
    """0.0.2."""

    row_limit = "max_running_requests"

    @classmethod
    def fits(cls, scheduler: Any) -> bool:
        """Does this engine keep its state so?"""
        return hasattr(scheduler, "chunked_req")

    def fields(self, scheduler: Any) -> Sequence[str]:
        """The names of the fields that belong to one lane."""
        return (*COMMON_FIELDS, *_results(scheduler), "chunked_req")

    def fresh(self, scheduler: Any, tree: Any, allocator: Any) -> dict[str, Any]:
        """The state of a lane in which nothing has happened yet."""
        from sgl_jax.srt.managers.schedule_batch import ScheduleBatch

        empty = ScheduleBatch(reqs=[], batch_is_full=False)
        return _fresh(scheduler, tree, allocator, empty) | {"chunked_req": None}

    def requests_of(self, batch: Any) -> list[Any]:
        """The requests of a batch, in the order of its rows."""
        return list(batch.reqs)

    def list_running(self, look: LaneLook) -> list[Any]:
        """The requests that hold rows and grow by a token a step."""
        running, last = look("running_batch").reqs, look("last_batch")
        joining = last.reqs if last is not None and last.forward_mode.is_extend() else ()
        return _once(running, joining)

    def find_chunked(self, look: LaneLook) -> Any:
        """The request whose prompt is computed piece by piece; None when there is none."""
        return look("chunked_req")

    def is_spent(self, look: LaneLook) -> bool:
        """Say if nothing runs or waits, and no result is still to come."""
        return _is_spent(look) and not look("chunked_req")

    def evict(self, tree: Any, tokens: int) -> None:
        """Free so many tokens of cached prefixes that no request uses now."""
        tree.evict(tokens)

    def note_room(self, scheduler: Any) -> None:
        """Let the lane that has its turn look again for room for another request."""
        scheduler.running_batch.batch_is_full = False

    def retract(self, scheduler: Any) -> None:
        """Send all that runs back into the waiting queue, where it begins again."""
        batch = scheduler.running_batch
        batch.filter_batch()
        requests = list(batch.reqs)
        for request, length in zip(requests, batch.seq_lens if requests else (), strict=False):
            self._release(scheduler, request, int(length))
        batch.filter_batch(keep_indices=[])
        scheduler.waiting_queue[:0] = requests
        self.retract_chunked(scheduler)

    def retract_chunked(self, scheduler: Any) -> None:
        """Send the request whose prompt is half computed back into the waiting queue.

        Before this, upstream has cached the computed part and freed the row.
        """
        request = scheduler.chunked_req
        if request is None:
            return
        scheduler.chunked_req = None
        if _caches_prefixes(scheduler.tree_cache):
            scheduler.tree_cache.dec_lock_ref(request.last_node)
        else:
            scheduler.token_to_kv_pool_allocator.free(request.prefix_indices)
        request.reset_for_retract()
        scheduler.waiting_queue.insert(0, request)

    def _release(self, scheduler: Any, request: Any, length: int) -> None:
        """Free the pages of its own and its row; what it shares with the cache stays cached."""
        tree, page = scheduler.tree_cache, scheduler.page_size
        cached = 0
        if _caches_prefixes(tree):
            cached = len(request.prefix_indices) // page * page
            tree.dec_lock_ref(request.last_node)
        rows = scheduler.req_to_token_pool
        own = rows.req_to_token[request.req_pool_idx, cached:length]
        scheduler.token_to_kv_pool_allocator.free(own)
        rows.free(request.req_pool_idx)
        request.reset_for_retract()


class Newer:
    """0.1.0rc0 and main, with one data rank."""

    row_limit = "per_dp_max_running_requests"

    @classmethod
    def fits(cls, scheduler: Any) -> bool:
        """Does this engine keep its state so?"""
        return hasattr(scheduler, "chunked_reqs") and scheduler.dp_size == 1

    def fields(self, scheduler: Any) -> Sequence[str]:
        """The names of the fields that belong to one lane."""
        return (*COMMON_FIELDS, *_results(scheduler), "chunked_reqs", "_pending_chunked_abort_reqs")

    def fresh(self, scheduler: Any, tree: Any, allocator: Any) -> dict[str, Any]:
        """The state of a lane in which nothing has happened yet."""
        from sgl_jax.srt.managers.schedule_batch import ScheduleBatch

        empty = ScheduleBatch.init_new(
            reqs=[[]],
            req_to_token_pool=scheduler.req_to_token_pool,
            token_to_kv_pool_allocator=allocator,
            tree_cache=tree,
            model_config=scheduler.model_config,
            enable_overlap=scheduler.enable_overlap,
            dp_size=1,
            spec_algorithm=scheduler.spec_algorithm,
            mesh=scheduler.mesh,
        )
        chunked = {"chunked_reqs": [None], "_pending_chunked_abort_reqs": [None]}
        return _fresh(scheduler, tree, allocator, empty) | chunked

    def requests_of(self, batch: Any) -> list[Any]:
        """The requests of a batch, in the order of its rows."""
        return list(batch.reqs_info[0].reqs or ())

    def list_running(self, look: LaneLook) -> list[Any]:
        """The requests that hold rows and grow by a token a step."""
        running, last = look("running_batch").reqs_info[0].reqs or (), look("last_batch")
        is_joining = last is not None and last.forward_mode.is_extend()
        return _once(running, (last.reqs_info[0].reqs or ()) if is_joining else ())

    def find_chunked(self, look: LaneLook) -> Any:
        """The request whose prompt is computed piece by piece; None when there is none."""
        return look("chunked_reqs")[0]

    def is_spent(self, look: LaneLook) -> bool:
        """Say if nothing runs or waits, and no result is still to come."""
        return _is_spent(look) and look("chunked_reqs")[0] is None

    def evict(self, tree: Any, tokens: int) -> None:
        """Free so many tokens of cached prefixes that no request uses now."""
        from sgl_jax.srt.mem_cache.base_prefix_cache import EvictParams

        tree.evict(EvictParams(num_tokens=tokens, dp_rank=0))

    def note_room(self, scheduler: Any) -> None:
        """Let the lane that has its turn look again for room for another request."""
        scheduler.running_batch.reqs_info[0].batch_is_full = False

    def retract(self, scheduler: Any) -> None:
        """Send all that runs back into the waiting queue, where it begins again."""
        batch = scheduler.running_batch
        batch.filter_batch()
        scheduler.waiting_queue[:0] = batch.retract_all(scheduler.server_args)
        self.retract_chunked(scheduler)

    def retract_chunked(self, scheduler: Any) -> None:
        """Send the request whose prompt is half computed back into the waiting queue.

        One that is being aborted is left: upstream ends it with the result that is to come.
        """
        from sgl_jax.srt.mem_cache.common import release_kv_cache

        request = scheduler.chunked_reqs[0]
        if request is None or scheduler._pending_chunked_abort_reqs[0] is not None:
            return
        scheduler.chunked_reqs[0] = None
        release_kv_cache(request, scheduler.tree_cache, is_insert=False)
        request.reset_for_retract()
        scheduler.waiting_queue.insert(0, request)


KINDS: Sequence[type[FirstRelease] | type[Newer]] = (Newer, FirstRelease)


def find_kind(scheduler: Any) -> LaneKind | None:
    """Find the kind that knows how this scheduler keeps its state; None when there is none."""
    for kind in KINDS:
        if kind.fits(scheduler) and all(hasattr(scheduler, name) for name in COMMON_FIELDS):
            return kind()
    return None


def tokens_to_come(request: Any, ratio: float) -> float:
    """Tokens that a request that runs may still need, reckoned as upstream does."""
    left = request.sampling_params.max_new_tokens - len(request.output_ids)
    return float(max(0, min(left, MOST_NEW)) * ratio)


def whole_need(request: Any) -> int:
    """The most tokens that a request that waits takes until it ends."""
    made = len(request.output_ids)
    prompt = len(request.origin_input_ids) + made
    return prompt + int(tokens_to_come(request, 1.0)) + 1


def prompt_left(request: Any) -> int:
    """Tokens of a prompt computed piece by piece that are still to be computed."""
    whole = len(request.origin_input_ids) + len(request.output_ids)
    return max(0, whole - len(request.prefix_indices))


def of_another_size(allocator: Any, tokens: int, kv_pool: Any) -> Any:
    """An allocator of the same kind for another KV pool."""
    given = {"size": tokens, "kvcache": kv_pool, "page_size": allocator.page_size}
    known = inspect.signature(type(allocator).__init__).parameters
    return type(allocator)(**{name: value for name, value in given.items() if name in known})


def empty_like(tree: Any, allocator: Any) -> Any:
    """A prefix cache of its own, for another lane."""
    made = copy.copy(tree)
    made.token_to_kv_pool_allocator = allocator
    made.reset()
    return made


def _fresh(scheduler: Any, tree: Any, allocator: Any, empty: Any) -> dict[str, Any]:
    policy = copy.copy(scheduler.policy)
    policy.tree_cache = tree
    return {
        "running_batch": empty,
        "last_batch": None,
        "cur_batch": None,
        "waiting_queue": [],
        "tree_cache": tree,
        "token_to_kv_pool_allocator": allocator,
        "policy": policy,
        "new_token_ratio": scheduler.init_new_token_ratio,
        **{name: deque[Any]() for name in _results(scheduler)},
    }


def _results(scheduler: Any) -> Sequence[str]:
    return ("result_queue",) if scheduler.enable_overlap else ()


def _is_spent(look: LaneLook) -> bool:
    return not (
        look("waiting_queue")
        or look("cur_batch")
        or look("last_batch")
        or not look("running_batch").is_empty()
    )


def _once(running: Sequence[Any], joining: Sequence[Any]) -> list[Any]:
    known = {id(request) for request in running}
    both = [*running, *(request for request in joining if id(request) not in known)]
    return [request for request in both if not request.finished()]


def _caches_prefixes(tree: Any) -> bool:
    return hasattr(tree, "root_node")
