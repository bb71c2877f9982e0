"""What a step reads stays as it was when the step was launched, whatever is launched after it."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

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
