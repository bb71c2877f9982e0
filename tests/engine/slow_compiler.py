"""A start under clients whose compiler is slow: who waits for it, and what others notice."""

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import jax

from hotreload.core.engines.replica import Replica
from hotreload.core.way_in.gate import Gate
from hotreload.life.start.warmup import compile_behind
from hotreload.types import Checkpoint, Generation
from tests.engine import real
from tests.waiting import turn_until

SLOW = 0.5
"""Seconds that each of these programs takes longer to be compiled, or read from the cache."""
PROGRAMS = ("model", "sampler")
OF_ANY_STEP = (
    *("jitted_run_model", "jitted_sampler", "jitted_compute_logprobs", "rows"),
    *("resolve_future_token_ids", "set_future_token_ids", "_lambda"),
)
AT_ONCE = 8
STEPS = 3
"""The most steps of the engine from one token of an answer to the next, beside others' prompts: a
slow machine has one of these in each step."""


async def nobody_waits_for_the_compiler(engine: Any, other: Checkpoint, *, clients: int) -> None:
    """Of a fresh engine: batches of any size find their programs, and none of these is computed.

    As many clients come in the first second. Later other weights go live, while it compiles still.
    """
    scheduler = engine._scheduler.scheduler
    runner = scheduler.tp_worker.get_model_runner()
    engine.ahead.keep_to_compiled(True)
    await the_first_answer_compiles_nothing(engine)
    await as_many_are_answered_at_a_time(engine, scheduler)
    staged = await engine.weights.stage(other)
    engine.count_anew()
    computed, launched = runner.forward_pass_id, scheduler.forward_ct
    with slow_compiler() as threads, steps_of_tokens(scheduler) as steps:
        warming = asyncio.create_task(warmed(engine))
        await asyncio.gather(*(comes(engine, at / clients) for at in range(clients)))
        assert longest(steps) <= STEPS
        assert len(steps) == clients
        answer = asyncio.create_task(real.ask(engine, "Who?", **real.ENDLESS))
        await turn_until(lambda: len(steps) > clients)
        before = await engine.switch.flip(staged)
        await engine.answers.abort(before)
        await answer
        await engine.switch.retire(before)
        await engine.weights.release(before)
        await warming
    assert engine.recompiles == 0
    assert set(threads) == {"compiling for a size of batches"}
    assert runner.forward_pass_id - computed == scheduler.forward_ct - launched
    assert sizes_in_use(engine) == ([1, 2, 4, 8], [64, 128, 256, 512])
    for count in (1, 2, 3, 5, 8):
        prompts = [f"{'why ' * 7 * count}{number}" for number in range(count)]
        asked = {"text": prompts, "sampling_params": {"temperature": 0.7, "max_new_tokens": 6}}
        assert len([each async for each in engine.answers.generate(asked)]) == 1
    assert engine.recompiles == 0


async def the_first_answer_compiles_nothing(engine: Any) -> None:
    """A start's probe: what its answer needs is compiled before, the two programs side by side.

    They are for as many requests, so the sampler is compiled once. They are traced one after the
    other: else the compile cache may know neither of them at the next start. Nothing is compiled
    that upstream's own first answers do not need, but for a look at the logits (`rows`).
    """
    before, programs = engine.recompiles, set[str]()
    with slow_compiler(programs) as threads, traced_alone(engine.ahead._rehearsal._program):
        await engine.unseen.probe(briefly=True)
    assert engine.recompiles == before
    assert threads == ["compiling for the first answers"] * 3
    assert programs <= {f"jit_{each}" for each in OF_ANY_STEP}


async def as_many_are_answered_at_a_time(engine: Any, scheduler: Any) -> None:
    """Before anything else is compiled."""
    with slow_compiler() as threads, steps_of_tokens(scheduler) as steps:
        asked = (real.ask(engine, f"{each}?", ignore_eos=True) for each in range(AT_ONCE))
        await asyncio.gather(*asked)
    assert threads == []
    assert len(steps) == AT_ONCE
    assert max(each[0] for each in steps.values()) < min(each[-1] for each in steps.values())


async def warmed(engine: Any) -> None:
    """Compile behind, as the daemon does."""
    gate: Any = Gate(publish=lambda event: None, replica=0)
    live = Generation(1, engine.weights.live.revision, "", 0.0)
    await compile_behind(
        Replica(engine, gate, live),
        changing=asyncio.Lock(),
        most=AT_ONCE,
        within=600.0,
        publish=lambda event: None,
    )


async def comes(engine: Any, after: float) -> None:
    """A client that comes after so many seconds; some have long prompts, or draw their tokens."""
    await asyncio.sleep(after)
    prompt = "why " * (12 if after else 60)
    drawn = {"temperature": 0.7 if after > 0.5 else 0}
    await real.ask(engine, prompt, **drawn, max_new_tokens=40, ignore_eos=True)


@contextmanager
def slow_compiler(programs: set[str] | None = None) -> Iterator[list[str]]:
    """Have a compiler that takes its time; yields the names of the threads that wait for it.

    `programs` gets the names of all that is compiled.
    """
    compiler: Any = jax._src.compiler
    usual, threads = compiler.compile_or_get_cached, list[str]()
    programs = set() if programs is None else programs

    def slowly(backend: Any, module: Any, *args: Any) -> Any:
        name = str(module.operation.attributes["sym_name"]).strip('"')
        programs.add(name)
        if any(each in name for each in PROGRAMS):
            threads.append(threading.current_thread().name)
            time.sleep(SLOW)
        return usual(backend, module, *args)

    compiler.compile_or_get_cached = slowly
    try:
        yield threads
    finally:
        compiler.compile_or_get_cached = usual


@contextmanager
def traced_alone(program: Any) -> Iterator[None]:
    """Have the tracing of a program take its time, and fail beside that of another."""
    jitted, tracing = program._jitted, threading.Lock()

    def lower(*given: Any) -> Any:
        assert tracing.acquire(blocking=False)
        time.sleep(SLOW)
        tracing.release()
        return jitted.lower(*given)

    program._jitted = SimpleNamespace(lower=lower)
    try:
        yield
    finally:
        program._jitted = jitted


@contextmanager
def steps_of_tokens(scheduler: Any) -> Iterator[dict[str, list[int]]]:
    """Note for each request at which step of the engine its tokens came; prompts do not count."""
    usual, steps = scheduler.process_batch_result, dict[str, list[int]]()
    prompts = 0

    def noted(batch: Any, result: Any, *args: Any) -> None:
        nonlocal prompts
        prompts += batch.forward_mode.is_extend()
        parts = getattr(batch, "reqs_info", (batch,))  # the newer engine's, of each data rank
        requests = [each for part in parts for each in part.reqs or ()]
        before = [len(each.output_ids) for each in requests]
        usual(batch, result, *args)
        for request, tokens in zip(requests, before, strict=True):
            if len(request.output_ids) > tokens:
                steps.setdefault(request.rid, []).append(scheduler.forward_ct - prompts)

    scheduler.process_batch_result = noted
    try:
        yield steps
    finally:
        scheduler.process_batch_result = usual


def longest(steps: dict[str, list[int]]) -> int:
    """The most steps between two tokens of an answer."""
    return max(b - a for each in steps.values() for a, b in itertools.pairwise(each))


def sizes_in_use(engine: Any) -> tuple[list[int], list[int]]:
    """The sizes that batches and prompts are padded to, from now on."""
    tokens, requests, _ = engine._scheduler.scheduler.tp_worker.get_precompile_paddings()
    return requests, tokens
