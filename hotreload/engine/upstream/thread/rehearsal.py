"""Compiles the programs for batches of a size, and computes nothing, while clients are served.

Upstream compiles for a size when a batch of it first comes, or by a forward pass of its own. Here
an empty batch goes upstream's own way on copies of its parts, in any thread. Where the model would
compute, its program is only compiled. JAX keeps the program for the next batch of this size.
"""

import copy
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import jax
import numpy as np

from hotreload.engine.capabilities import BatchSize
from hotreload.engine.lanes.along import Along, note_along
from hotreload.engine.lanes.compiled_sizes import (
    MANY_PLACES,
    computes_every_place,
    list_paddings,
)
from hotreload.engine.slots import find_slot
from hotreload.engine.upstream.thread.nonfinite_logits import note_nonfinite
from hotreload.engine.upstream.thread.scheduler import SchedulerThread


class BatchWay(Protocol):
    """The steps of a batch in which the versions of sglang-jax differ."""

    def batch(self, worker: Any, size: BatchSize, mode: Any) -> Any:
        """Make a batch of this size without requests."""
        ...

    def make_sampling(self, worker: Any, batch: Any) -> Any:
        """Make the sampler's input for the batch."""
        ...

    def resolve(self, client: Any, batch: Any) -> None:
        """Put in the tokens that did not exist at the launch, as the forward thread does."""
        ...

    def note(self, client: Any, batch: Any, tokens: Any) -> None:
        """Note the batch's tokens for the next batch, as the forward thread does."""
        ...

    def wrap_logits(self, logits: Any) -> Any:
        """Return these logits as the model runner returns them."""
        ...


class FirstReleaseWay:
    """The steps of a batch in 0.0.2."""

    @classmethod
    def fits(cls, worker: Any) -> bool:
        """Say if this engine makes its batches in this way."""
        return hasattr(worker, "generate_model_worker_batch")

    def batch(self, worker: Any, size: BatchSize, mode: Any) -> Any:
        """Make a batch of this size without requests."""
        make = worker.generate_model_worker_batch
        return make(size.requests, size.tokens, mode, size.cached)

    def make_sampling(self, worker: Any, batch: Any) -> Any:
        """Make the sampler's input for the batch."""
        from sgl_jax.srt.sampling.sampling_batch_info import SamplingMetadata

        return SamplingMetadata.from_model_worker_batch(batch, 0, worker.mesh)

    def resolve(self, client: Any, batch: Any) -> None:
        """Put in tokens that were still to come when it was launched, as its thread does."""
        from sgl_jax.srt.managers.utils import resolve_future_token_ids

        made, tokens = batch.forward_batch, client.future_token_ids_map
        made.input_ids = resolve_future_token_ids(made.input_ids, tokens)

    def note(self, client: Any, batch: Any, tokens: Any) -> None:
        """Note its tokens for the next batch, as its thread does."""
        from sgl_jax.srt.managers.utils import set_future_token_ids

        set_future_token_ids(client.future_token_ids_map, 0, tokens)

    def wrap_logits(self, logits: Any) -> Any:
        """Return these logits as the model runner returns them."""
        return logits, 0


class NewerWay:
    """The steps of a batch in 0.1.0rc0 and main, with one data rank."""

    @classmethod
    def fits(cls, worker: Any) -> bool:
        """Say if this engine makes its batches in this way."""
        return hasattr(getattr(worker, "compilation_manager", None), "_make_dummy_batch")

    def batch(self, worker: Any, size: BatchSize, mode: Any) -> Any:
        """Make a batch of this size without requests."""
        make, own = worker.compilation_manager._make_dummy_batch, size.requests
        batch = make(own, size.tokens, mode, size.cached, dp_size=1, per_dp_bs_size=own)
        if size.has_logprobs:
            batch.return_logprob, batch.return_output_logprob_only = True, False
            batch.top_logprobs_nums, batch.token_ids_logprobs = [0] * own, [None] * own
        if size.has_logprobs and size.is_prompt:
            batch.extend_logprob_start_lens = np.zeros(own, np.int32)
            batch.input_logprob_indices = np.zeros(size.tokens, np.int32)
            batch.extend_input_logprob_token_ids = np.zeros(size.tokens, np.int32)
        return batch

    def make_sampling(self, worker: Any, batch: Any) -> Any:
        """Make the sampler's input for the batch."""
        from sgl_jax.srt.sampling.sampling_batch_info import SamplingMetadata

        vocabulary = worker.model_config.vocab_size
        return SamplingMetadata.from_model_worker_batch(batch, 0, worker.mesh, vocabulary)

    def resolve(self, client: Any, batch: Any) -> None:
        """Put in tokens that were still to come when it was launched, as its thread does."""
        from sgl_jax.srt.managers.utils import resolve_future_token_ids

        made, tokens = batch.forward_batch, client.future_token_ids_map
        made.input_ids = resolve_future_token_ids(made.input_ids, tokens, client.mesh)

    def note(self, client: Any, batch: Any, tokens: Any) -> None:
        """Note its tokens for the next batch, as its thread does."""
        from sgl_jax.srt.managers.utils import future_slot_indices, set_future_token_ids

        known = client.future_token_ids_map
        lengths, rows = np.asarray(batch.seq_lens), np.asarray(batch.req_pool_indices)
        slots = future_slot_indices(lengths, rows, known.shape[0])
        set_future_token_ids(known, slots, tokens, client.mesh)
        client.async_gather_fn(tokens)

    def wrap_logits(self, logits: Any) -> Any:
        """Return these logits as the model runner returns them."""
        return logits, 0, None


WAYS: Sequence[type[FirstReleaseWay] | type[NewerWay]] = (NewerWay, FirstReleaseWay)


def find_rehearsal(thread: SchedulerThread) -> "Rehearsal | None":
    """Return the rehearsal for this engine; None if batches must be computed to compile for them.

    Then it is unknown how the engine makes its batches, or other ranks would have to sample too.
    """
    if thread.cannot_overlap or thread.turns is not None:
        return None
    scheduler = thread.scheduler
    worker = getattr(scheduler.tp_worker, "worker", scheduler.tp_worker)
    way = next((way for way in WAYS if way.fits(worker)), None)
    program = _program_of(worker.model_runner)
    return None if way is None or program is None else Rehearsal(scheduler, way(), program)


class Rehearsal:
    """Knows the sizes that batches of a scheduler are padded to, and compiles for one of them.

    It holds no weights and no KV pool, only their layout: other weights may be live later.
    """

    def __init__(self, scheduler: Any, way: BatchWay, program: "Program") -> None:
        """The engine must be idle, and still have its first weights."""
        self._client = scheduler.tp_worker
        self._worker = getattr(self._client, "worker", self._client)
        self._way = way
        self._program = self._shadows = program
        self._sampling = threading.Lock()
        """Held while the sampler is compiled: sizes of the same number of requests share it."""

    def also_in(self, pool: Any) -> None:
        """Compile for a second pool, too, in which weights are proven; `pool` describes it."""
        self._shadows = self._program.with_pool(pool)

    def sizes(self, most: int, longest: int) -> Iterator[BatchSize]:
        """Yield the sizes of batches of up to `most` requests, then of prompts up to `longest`.

        Upstream pads batches to these sizes.
        """
        tokens, requests, cached = list_paddings(self._client)
        for size, places in zip(requests, cached, strict=True):
            yield BatchSize(False, size, size, places)
            if size >= most:
                break
        for size in (each for each in tokens if each >= requests[-1]):
            yield BatchSize(True, requests[-1], size, cached[-1])
            if size >= longest:
                break

    def with_fewer_places(self, prompts: Iterable[BatchSize]) -> Iterator[BatchSize]:
        """Yield sizes of the same prompts that name fewer places, where each of these costs time.

        They hold one request at full length, or, where the fewest tokens are computed, a chunk of
        prompts that begin.
        """
        if not computes_every_place(self._client):
            return
        tokens, requests, cached = list_paddings(self._client)
        one = cached[-1] // requests[-1]
        for size in prompts:
            few = {one, min(one, tokens[-1])} if size.tokens == tokens[0] else {one}
            for places in sorted(few):
                if size.tokens <= places < size.cached > MANY_PLACES:
                    yield replace(size, cached=places)

    def compile_for(self, size: BatchSize) -> None:
        """Compile all programs for a batch of this size; blocks, in any thread."""
        from sgl_jax.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

        program = self._shadows if size.is_shadow else self._program
        client, way, worker = self._client, self._way, self._stand_in(program)
        if size.is_noted:
            note_along(worker.model_runner)
            worker.model_runner.along = Along({})
        mode = ForwardMode.EXTEND if size.is_prompt else ForwardMode.DECODE
        batch = way.batch(worker, size, mode)
        sampling = way.make_sampling(worker, batch)
        batch.forward_batch = ForwardBatch.init_new(batch, worker.model_runner)
        is_overlapped = client is not self._worker
        if is_overlapped:
            way.resolve(client, batch)
        _, tokens, _ = worker.forward_batch_generation(batch, None, False, sampling)
        if is_overlapped:
            way.note(client, batch, tokens)

    def _stand_in(self, program: "Program") -> Any:
        """Copy the worker; the copy computes nothing, and does not change the serving one."""
        runner = copy.copy(self._worker.model_runner)
        vars(runner).update(program.describe())
        for ours in ("forward", "sample"):  # of the one that serves
            vars(runner).pop(ours, None)
        note_nonfinite(runner)
        sample = runner.sample

        def sample_alone(*given: Any) -> Any:
            with self._sampling:
                return sample(*given)

        runner.sample = sample_alone
        runner.attn_backend = copy.copy(runner.attn_backend)
        runner._forward = lambda *given: self._way.wrap_logits(program.compile(*given))
        worker = copy.copy(self._worker)
        vars(worker).pop("forward_batch_generation", None)  # ours: it would bind weights
        worker.worker = worker
        worker.model_runner = runner
        worker.sync_queue = queue.SimpleQueue()  # the newer engine's; no thread reads it
        return worker


class Program:
    """The model's program, with the layout of weights and KV pool, without their contents."""

    def __init__(self, jitted: Any, model_def: Any, state_def: Any, model_runner: Any) -> None:
        self._jitted = jitted
        self._defined = (model_def, state_def)
        self._tracing = threading.Lock()
        """Held while one thread traces: two at once share some of JAX's traces at random, and then
        the compile cache finds neither program again."""
        self._leaves = [_describe(leaf) for leaf in find_slot(model_runner).read()]
        self._pool = jax.tree.map(_describe, model_runner.token_to_kv_pool)
        pools = getattr(model_runner, "memory_pools", None)  # the newer engine's holder of them
        self._pools = None if pools is None else jax.tree.map(_describe, pools)

    def with_pool(self, pool: Any) -> "Program":
        """Return the same program for another KV pool, which `pool` describes."""
        made = copy.copy(self)
        made._pool = pool
        if self._pools is not None:
            pools = {**self._pools._pools, "token_to_kv_pool": pool}
            made._pools = type(self._pools)(**pools)
        return made

    def describe(self) -> dict[str, Any]:
        """Return the attributes of a model runner that describe its weights and KV pool."""
        pools = {} if self._pools is None else {"memory_pools": self._pools}
        leaves = {} if self._pools is None else {"model_state_leaves": self._leaves}
        return {"model": None, "token_to_kv_pool": self._pool, **pools, **leaves}

    def compile(self, forward_batch: Any, logits_metadata: Any) -> Any:
        """Compile the program for such a batch; return logits of its output's shape, all zeros."""
        pools = self._pool if self._pools is None else self._pools
        given = (*self._defined, self._leaves, forward_batch, pools, logits_metadata)
        with self._tracing:
            lowered = self._jitted.lower(*given)
        made = lowered.compile()
        return jax.tree.map(_zeros, lowered.out_info[0], made.output_shardings[0])


def _program_of(model_runner: Any) -> Program | None:
    run = model_runner.jitted_run_model
    names = getattr(getattr(run, "__code__", None), "co_freevars", ())
    cells = dict(zip(names, getattr(run, "__closure__", None) or (), strict=True))
    if not cells.keys() >= {"model_def", "model_state_def"}:
        return None
    defined = (cells["model_def"].cell_contents, cells["model_state_def"].cell_contents)
    if "jitted_run_model" in cells:
        return Program(cells["jitted_run_model"].cell_contents, *defined, model_runner)
    dispatcher = getattr(model_runner, "_run_model_dispatcher", None)  # ahead-of-time programs
    return None if dispatcher is None else Program(dispatcher._jit_fn, *defined, model_runner)


def _describe(array: Any) -> Any:
    """Describe an array without its contents, as the compiler sees it."""
    if not isinstance(array, jax.Array) or jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
        return array
    return jax.ShapeDtypeStruct(  # type: ignore[no-untyped-call]
        array.shape, array.dtype, sharding=array.sharding, weak_type=array.weak_type
    )


def _zeros(like: Any, sharding: Any) -> Any:
    return jax.device_put(np.zeros(like.shape, like.dtype), sharding)
