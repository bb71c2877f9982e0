"""What batches are kept to while sizes are compiled for: the reckoning, without an engine."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from hotreload.engine.capabilities import BatchSize
from hotreload.engine.lanes.compiled_sizes import CompiledSizes

TOKENS, REQUESTS, CACHED = [64, 128, 256], [1, 2, 4, 8], [10, 20, 40, 80]
ALL = (TOKENS, REQUESTS, CACHED)
STEPS_OF_ONE, STEPS_OF_ALL = BatchSize(False, 1, 1, 10), BatchSize(False, 8, 8, 80)
PROMPT = BatchSize(True, 8, 64, 80)


def compiled(*sizes: BatchSize, page: int = 1) -> CompiledSizes:
    made = CompiledSizes(page)
    made.is_kept_to = True
    made.sizes.update(sizes)
    return made


def scheduler(**fields: Any) -> Any:
    usual = {"rows": 8, "chunked_prefill_size": 256, "page_size": 1, "is_mixed_chunk": False}
    return SimpleNamespace(**usual | fields)


def bounds(known: CompiledSizes, upstream: Any) -> tuple[int, int]:
    """So many requests and tokens of prompts upstream sees, and what it had it has afterwards."""
    before = dict(vars(upstream))
    with known.limit_scheduler(upstream, "rows") as rows:
        assert rows == upstream.rows
        seen = upstream.rows, upstream.chunked_prefill_size
    assert vars(upstream) == before
    return seen


@pytest.mark.parametrize(
    ("sizes", "seen"),
    [
        ([], (8, 256)),
        ([STEPS_OF_ONE], (1, 256)),
        ([STEPS_OF_ONE, PROMPT], (1, 64)),
        ([STEPS_OF_ALL, STEPS_OF_ONE, PROMPT], (8, 64)),
        ([BatchSize(False, 16, 16, 160), BatchSize(True, 16, 512, 160)], (8, 256)),
        ([BatchSize(False, 1, 1, 10, is_shadow=True)], (8, 256)),
    ],
)
def test_no_more_is_taken_in_than_what_is_compiled_holds(
    sizes: list[BatchSize], seen: tuple[int, int]
) -> None:
    assert bounds(compiled(*sizes), scheduler()) == seen


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"page_size": 48}, 48),
        ({"page_size": 128}, 256),  # a piece has whole pages
        ({"chunked_prefill_size": None}, None),
        ({"is_mixed_chunk": True}, 256),
    ],
)
def test_pieces_of_prompts_are_those_that_upstream_can_make(
    fields: dict[str, Any], tokens: int | None
) -> None:
    assert bounds(compiled(PROMPT), scheduler(**fields))[1] == tokens


@pytest.mark.parametrize(
    ("sizes", "left"),
    [
        ([], ALL),
        ([STEPS_OF_ONE], ALL),
        ([STEPS_OF_ALL], (TOKENS, [8], [80])),
        ([STEPS_OF_ONE, STEPS_OF_ALL], (TOKENS, [1, 8], [10, 80])),
        ([BatchSize(False, 4, 4, 40)], (TOKENS, [4, 8], [40, 80])),
        ([BatchSize(True, 8, 128, 80)], ([128, 256], REQUESTS, CACHED)),
    ],
)
def test_a_batch_is_padded_to_a_larger_size_rather_than_to_one_that_is_missing(
    sizes: list[BatchSize], left: tuple[list[int], ...]
) -> None:
    """The largest stays: the rows of prompts are padded to it."""
    assert compiled(*sizes).to_pad_to(*ALL) == left


def prompt(whole: int, computed: int) -> Any:
    return SimpleNamespace(fill_ids=[0] * whole, extend_input_len=computed)


FEWER = BatchSize(True, 8, 64, 20)


@pytest.mark.parametrize(
    ("sizes", "prompts", "places"),
    [
        ([PROMPT, FEWER], [prompt(18, 18)], 20),
        ([FEWER], [prompt(18, 18)], 20),
        ([PROMPT, FEWER, replace(FEWER, cached=40)], [prompt(39, 1)], 40),  # with what is cached
        ([PROMPT, FEWER], [prompt(9, 9), prompt(9, 9)], 80),  # by whole pages
        ([PROMPT, FEWER], [prompt(65, 65)], 80),
        ([PROMPT], [prompt(18, 18)], 80),
        ([PROMPT, replace(FEWER, is_shadow=True)], [prompt(18, 18)], 80),
        ([PROMPT, replace(FEWER, has_logprobs=True)], [prompt(18, 18)], 80),
        ([PROMPT, replace(FEWER, requests=4)], [prompt(18, 18)], 80),
    ],
)
@pytest.mark.parametrize("is_kept_to", [True, False])
def test_prompts_name_the_fewest_places_that_hold_them_and_are_compiled_for(
    sizes: list[BatchSize], prompts: list[Any], places: int, *, is_kept_to: bool
) -> None:
    known = compiled(*sizes, page=4)
    known.is_kept_to = is_kept_to
    assert known.to_pad_to(*ALL, prompts) == (TOKENS, REQUESTS, [10, 20, 40, places])


def test_afterwards_it_is_all_as_ever() -> None:
    known = compiled(STEPS_OF_ONE, STEPS_OF_ALL, PROMPT)
    known.is_kept_to = False
    assert known.to_pad_to(*ALL) == ALL
    assert bounds(known, scheduler()) == (8, 256)


def launched(mode: str = "DECODE", **fields: Any) -> Any:
    """A batch for as many requests and tokens, with this of its own."""
    is_step = mode == "DECODE"
    tokens = 8 if is_step else 64
    return SimpleNamespace(
        forward_mode=SimpleNamespace(name=mode, is_decode=lambda: is_step),
        seq_lens=[0] * 8,
        input_ids=[0] * tokens,
        cache_loc=[0] * 80,
        return_logprob=fields.get("return_logprob", False),
        sampling_info=SimpleNamespace(**fields),
    )


@pytest.mark.parametrize(
    ("batch", "noted"),
    [
        (launched(), {STEPS_OF_ALL}),
        (launched("EXTEND"), {PROMPT}),
        (launched("MIXED"), set()),
        (launched(return_logprob=True), set()),
        (launched(penalizer_orchestrator=SimpleNamespace(is_required=True)), set()),
        (launched(penalizer_orchestrator=SimpleNamespace(is_required=False)), {STEPS_OF_ALL}),
    ],
)
def test_what_a_batch_compiles_that_is_launched_others_find(
    batch: Any, noted: set[BatchSize]
) -> None:
    known = CompiledSizes()
    known.note_launched(batch)
    assert known.sizes == noted
