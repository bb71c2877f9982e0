"""What is compiled ahead: each size once, what weights are proven with first, and no fault ends it.

The rehearsal here compiles nothing; the real one is tried in tests/engine/test_sglang.py.
"""

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hotreload.engine.ahead import Ahead
from hotreload.engine.capabilities import BatchSize
from hotreload.engine.lanes.compiled_sizes import CompiledSizes
from hotreload.engine.lanes.pool_shares import SHADOW_ROWS
from hotreload.engine.lanes.shadow import ShadowPool
from hotreload.engine.upstream.thread.rehearsal import Rehearsal
from hotreload.quiet import LITTLE, SWITCH_INTERVAL
from tests.waiting import PATIENCE


def pool_of(places: int) -> Any:
    """A small pool in which a batch names so many places; 0 for as many as one of clients."""
    describe = lambda: "a small pool"  # noqa: E731
    size = {"tokens": 40, "candidate_tokens": 80}
    rows = lambda prompts, is_noted: SHADOW_ROWS if is_noted else prompts  # noqa: E731
    named = {"places_of": lambda is_noted: places, "rows_of": rows}
    return SimpleNamespace(describe=describe, page=1, **named, **size)


SMALL_POOL = pool_of(0)
ONE, TWO, FOUR, PROMPT = (
    BatchSize(False, 1, 1, 8),
    BatchSize(False, 2, 2, 16),
    BatchSize(False, 4, 4, 32),
    BatchSize(True, 4, 64, 32),
)


class Noted:
    """A rehearsal that notes what it is asked."""

    def __init__(self) -> None:
        self.compiled: list[BatchSize] = []
        self.fewer = 0
        """Places of prompts that name fewer; 0 where none do."""
        self.pools: list[Any] = []
        self.ways: list[tuple[float, int]] = []
        """How long the compiling thread kept Python's lock, and its niceness."""
        self.fault: Exception | None = None
        self.begins: Callable[[], object] = int
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def also_in(self, pool: Any) -> None:
        self.pools.append(pool)

    def sizes(self, most: int, longest: int) -> Iterator[BatchSize]:
        yield PROMPT
        yield from (each for each in (TWO, FOUR, ONE) if each.requests <= most)

    def with_fewer_places(self, prompts: Sequence[BatchSize]) -> Iterator[BatchSize]:
        yield from (replace(size, cached=self.fewer) for size in prompts if self.fewer)

    def compile_for(self, size: BatchSize) -> None:
        self.begins()
        self.may_go_on.wait()
        self.ways.append((sys.getswitchinterval(), niceness(threading.get_native_id())))
        if self.fault is not None:
            raise self.fault
        self.compiled.append(size)


def niceness(thread: int = 0) -> int:
    return os.getpriority(os.PRIO_PROCESS, thread)


def ahead_of(rehearsal: Any, compiled: CompiledSizes | None = None, at_once: int = 1) -> Ahead:
    watch: Any = SimpleNamespace(check=lambda: None)  # the engine lives
    return Ahead(rehearsal, compiled or CompiledSizes(), watch, at_once)


async def test_steps_of_as_many_as_are_answered_at_once_are_compiled_first() -> None:
    noted = Noted()
    await ahead_of(noted, at_once=4).compile_first(1, 24)
    assert {*noted.compiled} == {FOUR, PROMPT}


def test_an_engine_that_must_be_asked_has_no_sizes_and_proves_as_it_is_asked() -> None:
    ahead = ahead_of(None)
    assert ahead.sizes_to_compile(8, 512) == []
    assert not ahead.can_prove_in(SMALL_POOL, (1, False))


def test_what_lets_most_be_answered_comes_first_and_what_is_between_comes_last() -> None:
    """What weights are proven with, which an attempt compiles when it needs it, comes before."""
    noted = Noted()
    ahead = ahead_of(noted)
    assert ahead.sizes_to_compile(4, 64) == [FOUR, PROMPT, ONE, TWO]
    assert ahead.sizes_to_compile(2, 64) == [TWO, PROMPT, ONE]
    assert ahead.sizes_to_compile(0, 64) == []
    assert ahead.can_prove_in(SMALL_POOL, (1, False))
    assert noted.pools == ["a small pool"]
    assert [(size.tokens, size.is_shadow) for size in ahead.sizes_to_compile(0, 64)] == [
        (1, True),
        (64, True),
    ]
    proving = ahead.sizes_to_compile(0, 64)
    assert ahead.sizes_to_compile(4, 64) == [FOUR, PROMPT, *proving, ONE, TWO]
    noted.fewer = 8
    few = replace(PROMPT, cached=8)
    assert ahead.sizes_to_compile(4, 64) == [FOUR, PROMPT, *proving, ONE, TWO, few]


def test_questions_have_one_size_of_prompts_and_one_of_steps_of_their_own() -> None:
    ahead = ahead_of(Noted())
    assert ahead.can_prove_in(SMALL_POOL, (1, False), questions=True)
    noted = [size for size in ahead.sizes_to_compile(0, 64) if size.is_noted]
    assert [(size.tokens, size.is_prompt, size.is_shadow) for size in noted] == [
        (4, False, True),
        (64, True, True),
    ]


def test_what_is_asked_names_as_many_places_as_it_takes_where_each_costs_time() -> None:
    """Prompts of clients name places for all requests."""
    ahead = ahead_of(Noted())
    assert ahead.can_prove_in(pool_of(20), (2, False), questions=True, candidate=24)
    assert [
        (size.requests, size.tokens, size.cached, size.is_shadow, size.is_noted)
        for size in ahead.sizes_to_compile(0, 64)
    ] == [
        (2, 2, 16, True, False),
        (4, 4, 20, True, True),
        (4, 4, 32, False, False),
        (2, 64, 16, True, False),
        (4, 64, 20, True, True),
        (4, 64, 32, False, False),
    ]


def test_however_many_probes_the_size_is_that_of_the_start() -> None:
    """Each row takes time, and a probe that came later would compile in front of clients."""
    kv_pool = SimpleNamespace(kv_buffer=[np.zeros(8)])
    allocator = SimpleNamespace(page_size=1, size=8192, get_kvcache=lambda: kv_pool)
    computed = ShadowPool(allocator, [20] * 4, computed=8192, probes=3)
    rows = [computed.rows_of(prompts, is_noted=False) for prompts in (1, 2, 3)]
    assert rows == [3, 3, 3]
    assert (computed.holds_probes([20] * 3), computed.holds_probes([10] * 4)) == (True, False)
    assert computed.holds([20] * 4), "questions take other rows"
    assert computed.rows_of(4, is_noted=True) == computed.rows_of(0, is_noted=False) == SHADOW_ROWS
    alike = ShadowPool(allocator, [20] * 4, computed=0, probes=3)  # it has no programs of its own
    assert (alike.rows_of(1, is_noted=False), alike.holds_probes([10] * 4)) == (1, True)


class NativeAttention:
    """Attention is computed to every place that a batch names."""


class Kernels:
    """It is not, as on a TPU."""


@pytest.mark.parametrize(
    ("attention", "length", "places"),
    [
        (NativeAttention, 4095, {64: [512, 4095], 128: [4095], 512: [4095]}),
        (NativeAttention, 400, {64: [400], 128: [400]}),  # no batch of 512 tokens names fewer
        (NativeAttention, 128, {}),  # 32 requests name few
        (Kernels, 4095, {}),
    ],
)
def test_prompts_may_name_the_places_of_one_request_where_those_of_all_cost_time(
    attention: type, length: int, places: dict[int, list[int]]
) -> None:
    class Worker:
        def get_precompile_paddings(self) -> tuple[list[int], list[int], list[int]]:
            return [64, 128, 512], [1, 32], [length, 32 * length]

        def get_model_runner(self) -> Any:
            return SimpleNamespace(attn_backend=attention())

    upstreams: Any = SimpleNamespace(_client=Worker())
    prompts = [BatchSize(True, 32, tokens, 32 * length) for tokens in (64, 128, 512)]
    found = list(Rehearsal.with_fewer_places(upstreams, prompts))
    assert found == [
        BatchSize(True, 32, tokens, each) for tokens, some in places.items() for each in some
    ]


async def test_a_size_that_a_batch_was_launched_of_is_not_compiled_for_again() -> None:
    noted = Noted()
    compiled = CompiledSizes()
    compiled.sizes.add(ONE)
    ahead = ahead_of(noted, compiled)
    for size in ahead.sizes_to_compile(2, 64):
        await ahead.compile_for(size)
    assert noted.compiled == [TWO, PROMPT]
    assert compiled.sizes == {ONE, TWO, PROMPT}


def test_batches_are_kept_to_what_is_compiled_only_where_that_can_be() -> None:
    for rehearsal, is_kept in ((Noted(), True), (None, False)):
        compiled = CompiledSizes()
        ahead = ahead_of(rehearsal, compiled)
        ahead.keep_to_compiled(True)
        assert compiled.is_kept_to == is_kept
        ahead.keep_to_compiled(False)
        assert not compiled.is_kept_to


async def test_each_size_is_compiled_for_once_however_many_ask_at_once() -> None:
    noted = Noted()
    noted.may_go_on.clear()
    ahead = ahead_of(noted)
    asked = [asyncio.create_task(ahead.compile_for(ONE)) for _ in range(3)]
    await asyncio.sleep(0)
    noted.may_go_on.set()
    await asyncio.gather(*asked)
    await ahead.compile_for(ONE)
    assert noted.compiled == [ONE]


async def test_what_the_first_answers_need_is_compiled_side_by_side_and_once() -> None:
    noted = Noted()
    noted.may_go_on.clear()
    ahead, both = ahead_of(noted), threading.Barrier(3, timeout=PATIENCE)
    noted.begins = both.wait
    first = asyncio.create_task(ahead.compile_first(1, 24))
    await asyncio.to_thread(both.wait)
    noted.may_go_on.set()
    await first
    assert {size.tokens for size in noted.compiled} == {1, 64}
    await ahead.compile_first(1, 24)
    assert len(noted.compiled) == 2
    assert ahead.sizes_to_compile(2, 64) == [TWO, PROMPT, ONE]


async def test_first_answers_compile_for_themselves_where_it_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    noted = Noted()
    noted.fault = KeyError("another engine")
    await ahead_of(noted).compile_first(1, 24)
    assert "engine.not_compiled_ahead" in caplog.text
    await ahead_of(None).compile_first(1, 24)


async def test_who_compiles_leaves_processors_and_the_lock_to_those_who_are_served() -> None:
    usual, noted = (sys.getswitchinterval(), niceness()), Noted()
    await ahead_of(noted).compile_for(ONE)
    ((interval, nice),) = noted.ways
    assert interval <= SWITCH_INTERVAL * 1.01 < usual[0]  # the system counts microseconds
    assert nice == max(LITTLE, usual[1])
    assert (sys.getswitchinterval(), niceness()) == usual


async def test_who_stages_waits_for_what_weights_are_proven_with_and_for_nothing_else() -> None:
    noted = Noted()
    ahead = ahead_of(noted)
    ahead.can_prove_in(SMALL_POOL, (1, False))
    await ahead.until_ready_to_prove()
    assert [size.is_shadow for size in noted.compiled] == [True, True]
    await ahead.until_ready_to_prove()
    assert len(noted.compiled) == 2


async def test_what_cannot_be_compiled_so_refuses_no_checkpoint(
    caplog: pytest.LogCaptureFixture,
) -> None:
    noted = Noted()
    noted.fault = KeyError("another engine")
    ahead = ahead_of(noted)
    ahead.can_prove_in(SMALL_POOL, (1, False))
    await ahead.until_ready_to_prove()
    assert "engine.not_compiled_ahead" in caplog.text
    assert ahead.sizes_to_compile(1, 64) == [ONE, PROMPT]
