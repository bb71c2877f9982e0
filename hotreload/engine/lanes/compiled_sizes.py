"""Knows which sizes of batches are compiled for, and keeps batches to these for a while.

A batch of another size has all requests wait for the compiler. While sizes are still compiled, a
lane takes in as many requests, and as much of a prompt, as a compiled size holds, and pads its
batches to that size. The rest waits for its turn.

Native attention, on CPUs and GPUs, computes to every place of the KV pool that a batch names, and
upstream's prompts name those of all requests that may run at once, at full length. A batch of
clients' prompts names fewer where a size with fewer is compiled, and holds it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hotreload.engine.capabilities import BatchSize

MANY_PLACES = 4096
"""Up to so many places it is worth no programs to name fewer: clients wait while attention is
computed to all of them, and on a CPU in some steps for each token of the pool."""

Paddings = tuple[list[int], list[int], list[int]]
"""Sizes to pad a batch to, as upstream lists them: tokens, requests, and as many places."""


class CompiledSizes:
    """Sizes that are compiled for; any thread notes one, the scheduler thread goes by them."""

    def __init__(self, page: int = 1) -> None:
        self._page = page
        self.sizes: set[BatchSize] = set()
        """They grow only."""
        self.is_kept_to = False
        """True while batches are kept to these sizes."""

    def note_launched(self, batch: Any) -> None:
        """Note the size of a batch of clients': those that are launched later find its programs."""
        requests, mode = len(batch.seq_lens), batch.forward_mode
        if _is_plain(batch) and (mode.is_decode() or mode.name == "EXTEND"):
            size = requests, len(batch.input_ids), len(batch.cache_loc)
            self.sizes.add(BatchSize(not mode.is_decode(), *size))

    @contextmanager
    def limit_scheduler(self, scheduler: Any, row_limit: str) -> Iterator[int]:
        """Limit what a scheduler takes in to these sizes; yields how many requests may run.

        As long as no size is known there is no limit: some request must be answered.
        """
        rows, chunk = getattr(scheduler, row_limit), scheduler.chunked_prefill_size
        most = min(rows, max(self._tokens(is_prompt=False), default=rows))
        setattr(scheduler, row_limit, most)
        # Without pieces a prompt is computed whole; pieces beside steps have programs of their own.
        if chunk and not scheduler.is_mixed_chunk:
            piece = min(chunk, max(self._tokens(is_prompt=True), default=chunk))
            page = scheduler.page_size
            scheduler.chunked_prefill_size = piece // page * page or chunk
        try:
            yield most
        finally:
            setattr(scheduler, row_limit, rows)
            scheduler.chunked_prefill_size = chunk

    def to_pad_to(
        self,
        tokens: Sequence[int],
        requests: Sequence[int],
        cached: Sequence[int],
        prompts: Sequence[Any] = (),
    ) -> Paddings:
        """Leave out of upstream's sizes those for which a larger one is compiled, and they not.

        The last number of places is that of a batch of prompts: the fewest, for these requests.
        """
        steps = self._find_left(requests, is_prompt=False)
        left = [tokens[at] for at in self._find_left(tokens, is_prompt=True)]
        places = [cached[at] for at in steps]
        if prompts:
            computed = sum(each.extend_input_len for each in prompts)
            padded = next((size for size in left if size >= computed), computed)
            largest = BatchSize(True, requests[-1], padded, cached[-1])
            places[-1] = self._fewest_places(largest, prompts)
        return left, [requests[at] for at in steps], places

    def _fewest_places(self, largest: BatchSize, prompts: Sequence[Any]) -> int:
        """Return the fewest compiled for that hold these prompts, and their cached places too."""
        page, known = self._page, tuple(self.sizes)  # another thread's may be noted meanwhile
        taken = sum(-(-len(each.fill_ids) // page) * page for each in prompts)
        alike = (each.cached for each in known if replace(each, cached=largest.cached) == largest)
        return min((places for places in alike if places >= taken), default=largest.cached)

    def _find_left(self, sizes: Sequence[int], *, is_prompt: bool) -> list[int]:
        known = self._tokens(is_prompt=is_prompt)
        largest = max(known, default=0)
        return [at for at, size in enumerate(sizes) if size in known or size > largest]

    def _tokens(self, *, is_prompt: bool) -> set[int]:
        """Tokens of the sizes that batches are kept to: none while they are not."""
        if not self.is_kept_to:
            return set()
        sizes = tuple(self.sizes)  # another thread's may be noted meanwhile
        clients = (each for each in sizes if not each.is_shadow)
        return {each.tokens for each in clients if each.is_prompt == is_prompt}


def _is_plain(batch: Any) -> bool:
    """Say if a batch has the programs of any of its size.

    Log-probabilities have some of their own, and on 0.0.2 penalties.
    """
    penalties = getattr(batch.sampling_info, "penalizer_orchestrator", None)
    return not (batch.return_logprob or (penalties is not None and penalties.is_required))


def list_paddings(worker: Any) -> Paddings:
    """List upstream's own sizes: the method that we put in its place leaves some out."""
    tokens, requests, cached = map(sorted, type(worker).get_precompile_paddings(worker))
    return tokens, requests, cached


def computes_every_place(worker: Any) -> bool:
    """Say if attention is computed to every place that a batch names, whatever it holds.

    Kernels for accelerators compute none in vain.
    """
    return type(worker.get_model_runner().attn_backend).__name__ == "NativeAttention"


def has_plain_prompts(batch: Any) -> bool:
    """Say if a batch that is to be launched has the programs of prompts of any of its size."""
    is_prompt = batch is not None and batch.forward_mode.name == "EXTEND"
    return is_prompt and not batch.return_logprob
