"""Knows which sizes of batches are compiled for, and keeps batches to these for a while.

A batch of another size has all requests wait for the compiler. While sizes are still compiled, a
lane takes in as many requests, and as much of a prompt, as a compiled size holds, and pads its
batches to that size. The rest waits for its turn.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hotreload.engine.capabilities import BatchSize


class CompiledSizes:
    """Sizes that are compiled for; any thread notes one, the scheduler thread goes by them."""

    def __init__(self) -> None:
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
        self, tokens: Sequence[int], requests: Sequence[int], cached: Sequence[int]
    ) -> tuple[list[int], list[int], list[int]]:
        """Leave out of upstream's sizes those for which a larger one is compiled, and they not."""
        kept = self._places(requests, is_prompt=False)
        prompts = self._places(tokens, is_prompt=True)
        return (
            [tokens[at] for at in prompts],
            [requests[at] for at in kept],
            [cached[at] for at in kept],
        )

    def _places(self, sizes: Sequence[int], *, is_prompt: bool) -> list[int]:
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
