"""Work-rounds of upstream's faults: each names the fault, the versions, and when it goes.

`0.0.2` is the release, `main` the repository as of August 2026. `embedded_engine` runs upstream in
our process; `logprobs`, `nonfinite_logits` and `answering` have work-rounds of their own. Nothing
here knows of checkpoints or generations.
"""

import inspect
import types
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

RING = 256
"""Slots in the ring of tokens that wait to be read, for each request that may run."""

IDLE_POLL_MS = 1000
"""Time an idle scheduler sleeps without a look; a message wakes it at once."""


def ready_first_release(loader: type, sampler: types.ModuleType) -> None:
    """Make the generation of sglang-jax whose models take `rngs` (0.0.2) run here at all.

    flax >= 0.12.1 wants a mesh context its models do not give ("An auto mesh context is
    required"), and off TPU its sampler passes a 3-tuple to a function that unpacks 2, while
    the TPU branch is plain JAX and right everywhere. Goes with 0.0.2.
    """
    if "rngs" not in inspect.signature(loader.__init__).parameters:  # type: ignore[misc]
        return
    import flax

    if "flax_always_shard_variable" in flax.config._values:
        flax.config.update("flax_always_shard_variable", False)
    if hasattr(sampler, "top_k_top_p_min_p_sampling_from_probs_jax_not_tpu_runtime"):
        sampler.is_tpu_runtime = lambda: True  # type: ignore[attr-defined]


def keep_pending_tokens(tp_worker: Any) -> None:
    """Give each batch as many slots for its tokens as it has requests, not as it is padded to.

    0.0.2 with overlap scheduling: tokens not yet read wait in a ring of 3 x max_running_requests
    slots. A prefill is padded to max_running_requests, so the third one in a row overwrites the
    tokens of those that decode meanwhile: about 1 answer in 40 said a word twice when requests
    arrived one by one. The ring is widened too: each chunk of a long prompt and each answer of
    one token takes slots while nothing is decoded. main has a slot for each request.
    """
    if not hasattr(tp_worker, "future_token_ids_ct"):
        return
    import jax
    import numpy as np

    old, size = tp_worker.future_token_ids_map, RING * tp_worker.max_running_requests
    ring = np.zeros((size + tp_worker.max_running_requests + 1,), old.dtype)
    tp_worker.future_token_ids_map = jax.device_put(ring, old.sharding)
    tp_worker.future_token_ids_limit = size
    forward = tp_worker.forward_batch_generation

    def forward_counting_requests(batch: Any, **more: Any) -> Any:
        before = tp_worker.future_token_ids_ct
        result = forward(batch, **more)
        taken = before + batch.real_bs
        tp_worker.future_token_ids_ct = taken % tp_worker.future_token_ids_limit
        return result

    tp_worker.forward_batch_generation = forward_counting_requests


def keep_cache_locations(scheduler: Any) -> None:
    """Give each batch its own copy of the places of its tokens in the KV pool.

    0.1.0rc0 with overlap scheduling: all batches write the places into one host buffer, and on a
    CPU `device_put` does not copy it. A step that has not run yet then reads the places of the next
    batch: about 1 answer in 2000 under 16 clients was made of other requests' tokens. Goes when
    `ScheduleBatch` copies for every engine, as it does for `pd_disaggregation`.
    """
    if getattr(scheduler.req_to_token_pool, "cache_loc_host_buf", None) is None:
        return
    worker = scheduler.tp_worker
    forward = worker.forward_batch_generation

    def forward_with_own(batch: Any, *args: Any, **more: Any) -> Any:
        batch.cache_loc = batch.cache_loc.copy()
        return forward(batch, *args, **more)

    worker.forward_batch_generation = forward_with_own


def admit_what_was_retracted(adder: type) -> None:
    """Count the tokens that a request still needs without those it has made; finish its prompt.

    0.0.2 and 0.1.0rc0 count tokens made before a retraction twice: once as prompt and once as to
    come. A request that is retracted late in a full pool is never admitted again. 0.0.2 also
    bounds the next piece of a prompt by an estimate that may be zero or less, and then goes on
    with no tokens. Goes when both count only the tokens that are left.
    """
    add_one, add_piece = adder.add_one_req, adder.add_chunked_req  # type: ignore[attr-defined]
    if hasattr(add_one, "counts_what_is_left"):
        return

    def add_one_req(self: Any, request: Any) -> Any:
        with _counting_what_is_left(request):
            return add_one(self, request)

    def add_chunked_req(self: Any, request: Any) -> Any:
        if isinstance(self.rem_total_token_offset, (int, float)):  # 0.0.2
            piece = min(self.rem_chunk_tokens, request.extend_input_len)
            self.rem_total_token_offset -= max(0, piece - int(self.rem_total_tokens))
        with _counting_what_is_left(request):
            return add_piece(self, request)

    add_one_req.counts_what_is_left = True  # type: ignore[attr-defined]
    adder.add_one_req = add_one_req  # type: ignore[attr-defined]
    adder.add_chunked_req = add_chunked_req  # type: ignore[attr-defined]


@contextmanager
def _counting_what_is_left(request: Any) -> Iterator[None]:
    params = request.sampling_params
    whole = params.max_new_tokens
    params.max_new_tokens = whole - len(request.output_ids)
    try:
        yield
    finally:
        params.max_new_tokens = whole


def abort_safely(tokenizer_manager: Any, abort_request: type) -> None:
    """Let an abort of a waiting request forget it, and ignore that of an unknown request.

    0.0.2 and main keep the state for ever, and raise KeyError for a request that just ended,
    which ends the process. Goes when `_handle_abort_req` pops with a default.
    """
    original = tokenizer_manager._handle_abort_req

    def forget(aborted: Any) -> None:
        if aborted.rid in tokenizer_manager.rid_to_state:
            original(aborted)
            del tokenizer_manager.rid_to_state[aborted.rid]

    mapping = tokenizer_manager._result_dispatcher._mapping
    mapping[:] = [(kind, forget if kind is abort_request else fn) for kind, fn in mapping]


def wait_without_timers(tokenizer_manager: Any) -> None:
    """Wait for the pieces of an answer, and for nothing else.

    0.0.2 and main set a timer for each piece, to ask every four seconds whether the client is gone,
    of a request object that they are not given here. Goes when there is none without such an
    object.
    """

    async def wait_one_response(
        asked: Any, state: Any, request: None = None
    ) -> AsyncGenerator[dict[str, Any]]:
        finished = False
        while not finished:
            await state.event.wait()
            state.event.clear()
            pieces, state.out_list = state.out_list, []
            finished = state.finished
            if pieces and finished:
                _check_accepted(pieces[-1]["meta_info"].get("finish_reason"))
            if pieces and (finished or asked.stream):
                yield pieces[-1]  # which holds those before it

    tokenizer_manager._wait_one_response = wait_one_response


def _check_accepted(ended: Any) -> None:
    """ValueError, as upstream raises it, when the scheduler refused what was asked."""
    ended = ended or {}
    if ended.get("type") == "abort" and ended.get("status_code") == HTTPStatus.BAD_REQUEST:
        raise ValueError(ended["message"])


def wait_while_idle(
    scheduler: Any, is_idle: Callable[[], bool], between_steps: Callable[[], None]
) -> None:
    """Sleep instead of spinning while nothing runs or waits; call `between_steps` at each turn.

    A rank above 0 has no sockets for requests: it waits for rank 0's next turn.

    In single-process mode both versions burn a whole core in a Python loop, and halve the speed
    of every other thread of the process. `sleep_on_idle` is an argument that nothing reads.
    Goes when it works.
    """
    import zmq

    receive = scheduler.recv_requests
    poller = zmq.Poller()
    sockets = (scheduler.recv_from_tokenizer, scheduler.recv_from_rpc)
    for socket in sockets if scheduler.node_rank == 0 else ():
        poller.register(socket, zmq.POLLIN)

    def receive_when_there_is_any() -> Any:
        between_steps()
        if scheduler.node_rank == 0 and is_idle():
            poller.poll(IDLE_POLL_MS)
        return receive()

    scheduler.recv_requests = receive_when_there_is_any


def look_by_bytes(sampling_params: type) -> None:
    """Let the scheduler look back as many tokens as a stop string has bytes.

    0.0.2 and main encode each stop string on our loop to learn how many tokens it has, once for
    every prompt of a batch: five requests of 50 kB held up everybody for 8 s. A model seldom cuts a
    text into tokens as an encoder does, but never into more tokens than the text has bytes, plus
    one for a mark that some tokenizers put before it. Goes when `normalize` does not encode.
    """

    def normalize(self: Any, tokenizer: Any) -> None:
        stops = self.stop_strs or []
        self.stop_strs = [stops] if isinstance(stops, str) else list(stops)
        longest = max((len(stop.encode()) for stop in self.stop_strs), default=0)
        self.stop_str_max_len = longest + 1 if longest else 0

    sampling_params.normalize = normalize  # type: ignore[attr-defined]
