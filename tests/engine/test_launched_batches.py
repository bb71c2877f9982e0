"""What a step reads stays as it was when the step was launched, whatever is launched after it."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from hotreload.engine.upstream.thread import rehearsal
from tests.engine import real

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real_engine]

CLIENTS = 8


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    root = tmp_path_factory.mktemp("batches")
    async with real.engine_of(real.Folders(root).folder(1), root / "spool") as engine:
        yield engine


def arrays_of(batch: Any) -> dict[str, Any]:
    """The arrays of a launched batch that say where its tokens are and what they may see."""
    import jax

    fields = {each.name: getattr(batch, each.name) for each in dataclasses.fields(batch)}
    return {name: value for name, value in fields.items() if isinstance(value, jax.Array)}


def align_host_buffer(pool: Any) -> None:
    """Where 0.1.0rc0 puts its buffer is chance; JAX never copies one that begins at 64 bytes."""
    buffer = getattr(pool, "cache_loc_host_buf", None)
    if buffer is not None:
        raw = np.zeros(buffer.nbytes + 64, np.uint8)
        start = -raw.ctypes.data % 64
        pool.cache_loc_host_buf = raw[start : start + buffer.nbytes].view(buffer.dtype)


async def test_a_launched_step_reads_what_it_was_given(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = engine._scheduler.scheduler
    align_host_buffer(scheduler.req_to_token_pool)
    worker = scheduler.tp_worker
    launch = worker.forward_batch_generation
    launched: list[tuple[str, Any, np.ndarray[Any, Any]]] = []

    def launch_and_keep(batch: Any, *args: Any, **more: Any) -> Any:
        result = launch(batch, *args, **more)
        for name, array in arrays_of(batch.forward_batch).items():
            launched.append((name, array, np.array(array)))
        return result

    monkeypatch.setattr(worker, "forward_batch_generation", launch_and_keep)
    prompts = ["x", "Who serves?", "And who serves this longer prompt?"]
    await asyncio.gather(*(real.ask(engine, prompts[at % 3]) for at in range(CLIENTS)))
    changed = {name for name, array, was in launched if not np.array_equal(np.array(array), was)}
    assert "cache_loc" in {name for name, _, _ in launched}
    assert changed == set()


@dataclasses.dataclass
class Prompts:
    """Batches of prompts: how many places each named, and the logits that it had."""

    places: list[int] = dataclasses.field(default_factory=list)
    logits: list[np.ndarray[Any, Any]] = dataclasses.field(default_factory=list)

    def note_from(self, worker: Any, patched: pytest.MonkeyPatch) -> None:
        runner = worker.get_model_runner()
        forward = runner.forward

        def forward_and_note(batch: Any, **more_given: Any) -> Any:
            output, *more = forward(batch, **more_given)
            if batch.forward_mode.is_extend():
                self.places.append(len(batch.cache_loc))
                self.logits.append(np.array(output.next_token_logits, np.float32)[0])
            return (output, *more)

        patched.setattr(runner, "forward", forward_and_note)


async def test_prompts_name_fewer_places_where_that_is_compiled_and_get_the_same_answers(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that begins, one that is cached in part, several at once. Nothing is compiled then."""
    monkeypatch.setattr(rehearsal, "MANY_PLACES", 0)

    async def ask_all() -> tuple[Prompts, list[Any]]:
        await engine.switch.scrub()
        noted = Prompts()
        with pytest.MonkeyPatch.context() as patched:
            noted.note_from(engine._scheduler.scheduler.tp_worker, patched)
            alone = [await real.ask(engine, "Who serves? " * times) for times in (1, 3)]
            beside = await asyncio.gather(*(real.ask(engine, f"{at} serve?") for at in range(3)))
        return noted, [real.said(each) for each in (*alone, *beside)]

    sizes = engine.ahead.sizes_to_compile(3, 64)  # of how many steps are is chance
    largest = max(size.cached for size in sizes)
    fewer = [size for size in sizes if size.is_prompt and size.cached < largest]
    for size in sizes:
        if size not in fewer:
            await engine.ahead.compile_for(size)
    before, answers = await ask_all()
    assert set(before.places) == {largest}
    for size in fewer:
        await engine.ahead.compile_for(size)
    compiled = engine.recompiles
    after, answers_then = await ask_all()
    assert answers_then == answers
    assert max(after.places) == largest // real.ARGS["max_running_requests"]
    assert engine.recompiles == compiled
    for was, now in zip(before.logits[:2], after.logits[:2], strict=True):
        np.testing.assert_allclose(now, was, rtol=0, atol=0.01 * np.abs(was).max())


async def answer_of(engine: Any, at: int) -> Any:
    """One of a crowd's: of another length, and some with a beginning that others have cached."""
    await asyncio.sleep(at % 10 / 10)
    ids = [9] * (at % 3 * 50) + [(at * 7 + each) % 90 + 1 for each in range(at * 37 % 300 + 1)]
    sampling = {"temperature": 0, "max_new_tokens": 8, "frequency_penalty": at % 2 / 2}
    async with aclosing(
        engine.answers.generate({"input_ids": ids, "sampling_params": sampling})
    ) as answers:
        async for answer in answers:
            last = answer
    return real.said(last)


@pytest.mark.at_night  # the same for many; by day the one before shows each kind
async def test_a_crowd_gets_the_same_answers_in_pieces_and_with_penalties(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearsal, "MANY_PLACES", 0)
    monkeypatch.setattr(engine._scheduler.scheduler, "chunked_prefill_size", 128)
    compiled = engine.ahead._compiled.sizes

    async def ask_all() -> tuple[set[int], list[Any]]:
        await engine.switch.scrub()
        noted = Prompts()
        with pytest.MonkeyPatch.context() as patched:
            noted.note_from(engine._scheduler.scheduler.tp_worker, patched)
            answers = await asyncio.gather(*(answer_of(engine, at) for at in range(60)))
        return set(noted.places), answers

    sizes = engine.ahead.sizes_to_compile(8, 128)
    largest = max(size.cached for size in sizes)
    fewer = {size for size in sizes if size.is_prompt and size.cached < largest}
    compiled -= fewer
    places, answers = await ask_all()
    assert places == {largest}
    for size in fewer:
        await engine.ahead.compile_for(size)
    places, answers_then = await ask_all()
    assert min(places) < largest
    assert answers_then == answers
