"""Ends every answer whose logits are no numbers, before any of its tokens is sent.

Finite weights can overflow on one prompt. The NaN that this leaves in the KV pool spoils other
answers too, and the sampler makes token 0 of NaN. Upstream does not check for it.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from hotreload.errors import AnswerNonfinite

NONFINITE_WORDS = "the logits are NaN or infinite"
"""The finish reason of a request that was ended for its logits; the loop looks for it."""


def end_nonfinite(scheduler: Any) -> None:
    """Check each batch's logits on the device, and end the requests whose rows are no numbers.

    Each step costs one maximum over every row, and one flag for each request copied to the host.
    Speculative decoding and main's fused steps sample elsewhere, so this does not see them.
    """
    look = _Look(scheduler)
    note_nonfinite(scheduler.tp_worker.get_model_runner())
    scheduler.process_batch_result = look.at_batch
    if look.is_overlapped:
        scheduler.tp_worker.resolve_last_batch_result = look.at_result


def note_nonfinite(model_runner: Any) -> None:
    """Have a model runner note the rows of logits that are no numbers, whenever it samples."""
    model_runner.sample = _add_flags(model_runner.sample, _rows_of(model_runner.mesh))


class _Look:
    """Keeps the batch whose result the scheduler thread reads, and ends its bad requests."""

    def __init__(self, scheduler: Any) -> None:
        self._process = scheduler.process_batch_result
        self._resolve = getattr(scheduler.tp_worker, "resolve_last_batch_result", None)
        self._batch: Any = None

    @property
    def is_overlapped(self) -> bool:
        return self._resolve is not None

    def at_batch(self, batch: Any, result: Any, *more: Any) -> Any:
        self._batch = batch
        if not self.is_overlapped and result is not None:
            self._end_bad(result.logits_output)
        try:
            return self._process(batch, result, *more)
        finally:
            self._batch = None

    def at_result(self, *args: Any) -> Any:
        assert self._resolve is not None
        resolved = self._resolve(*args)
        self._end_bad(resolved[0])
        return resolved

    def _end_bad(self, logits_output: Any) -> None:
        """Mark the bad requests before upstream appends their tokens: it then ends them instead."""
        flags = getattr(logits_output, "nonfinite_rows", None)
        if flags is None or not (rows := np.asarray(flags)).any():
            return
        for request in _requests_in(self._batch, rows.nonzero()[0].tolist()):
            _end(request)


def _add_flags(sample: Callable[..., Any], rows_of: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return the sampler with a flag for each row added to its output for the host."""

    def sample_and_note(logits_output: Any, *more: Any) -> Any:
        flags = rows_of(logits_output.next_token_logits)
        flags.copy_to_host_async()
        sampled = sample(logits_output, *more)
        made_anew = sampled[-1] if isinstance(sampled, tuple) else None  # main
        (made_anew or logits_output).nonfinite_rows = flags
        return sampled

    return sample_and_note


@cache
def _rows_of(mesh: Mesh) -> Callable[[jax.Array], jax.Array]:
    """Return a program that flags rows whose maximum is no number; every host can read it."""
    everywhere = NamedSharding(mesh, PartitionSpec())  # type: ignore[no-untyped-call]

    def rows(logits: jax.Array) -> jax.Array:
        # NaN wins every maximum; -inf alone is how tokens are forbidden.
        return ~jnp.isfinite(jnp.max(logits, axis=-1))

    return jax.jit(rows, out_shardings=everywhere)


def _requests_in(batch: Any, rows: Sequence[int]) -> Iterator[Any]:
    """Yield the requests in these rows; other rows are padding. main pads each data rank."""
    ranks = getattr(batch, "reqs_info", None)
    lists = [batch.reqs] if ranks is None else [rank.reqs for rank in ranks]
    width = batch.per_dp_bs_size if ranks is not None else max(rows) + 1
    for row in rows:
        requests = lists[row // width] or ()
        if row % width < len(requests):
            yield requests[row % width]


def _end(request: Any) -> None:
    from sgl_jax.srt.managers.schedule_batch import FINISH_ABORT

    if hasattr(request, "to_finish"):  # main
        request.to_finish = FINISH_ABORT(NONFINITE_WORDS)
    else:
        request.to_abort, request.to_abort_message = True, NONFINITE_WORDS


def check_finite(answer: dict[str, Any]) -> None:
    """Raise AnswerNonfinite if this request was ended for its logits."""
    ended = answer["meta_info"].get("finish_reason") or {}
    if ended.get("type") == "abort" and ended.get("message") == NONFINITE_WORDS:
        raise AnswerNonfinite(
            "the weights made NaN or infinities of this prompt, or of another's beside it, so "
            "there is no answer; asking again may help, other weights do"
        )


class WithheldCount:
    """Counts the answers that were withheld."""

    def __init__(self) -> None:
        self._count = 0
        self._moved = asyncio.Event()

    def note(self) -> None:
        """Count one more withheld answer."""
        self._count += 1
        self._moved.set()

    async def more_than(self, count: int) -> int:
        """Wait until more than `count` answers were withheld, and return their number."""
        while self._count <= count:
            self._moved.clear()
            await self._moved.wait()
        return self._count
