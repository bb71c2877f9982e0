"""Memory of a live leaf is damaged: the daemon notices by itself, and says so everywhere."""

import ctypes
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hotreload.events import LiveDrifted, LiveVerified
from hotreload.types import Outcome
from tests.integration.running import Running

pytestmark = [pytest.mark.real_engine, pytest.mark.timeout(180)]


def flip_a_bit(running: Running, leaf: str) -> None:
    """As a fault of the memory does; JAX hears nothing of it."""
    (shard,) = running.engine.weights.live_leaves()[leaf].addressable_shards
    byte = ctypes.c_uint8.from_address(shard.data.unsafe_buffer_pointer())
    byte.value ^= 1


def nearly(like: Path, folder: Path, tensor: str) -> Path:
    """The same checkpoint but for the last bit of one number."""
    aside = shutil.copytree(like, folder.with_name(f".{folder.name}"))
    tensors = load_file(aside / "model.safetensors")
    tensors[tensor].reshape(-1).view(np.uint8)[0] ^= 1
    save_file(tensors, aside / "model.safetensors")
    return aside.rename(folder)


async def test_a_bit_that_flips_in_a_live_leaf_is_told_until_other_weights_are_live(
    tmp_path: Path,
) -> None:
    running = Running(tmp_path, "checks.verify_live_every=0.2")
    running.drop(1)
    async with running.serving(), running.client() as client:

        async def found(kind: type[LiveVerified | LiveDrifted]) -> LiveVerified | LiveDrifted:
            seen = len(running.happened)
            await running.until(lambda: any(isinstance(e, kind) for e in running.happened[seen:]))
            return next(e for e in running.happened[seen:] if isinstance(e, kind))

        async def told() -> tuple[bool, bool]:
            """Whether the status and the metrics say that leaves drifted."""
            status = (await client.get("/status")).json()
            page = running.daemon.metrics.render()  # what a scrape gets may be a second old
            return status["drifted"] is not None, b'hotreload_live_drifted{replica="0"} 1.0' in page

        await running.attempted(running.drop(2))
        # The next checkpoint has it too, and would share it and its damage.
        leaf = min(name for name in running.live.leaves if "mlp" in name)
        await found(LiveVerified)
        assert await told() == (False, False)
        flip_a_bit(running, leaf)
        assert (await found(LiveDrifted)).leaves == (leaf,)  # type: ignore[union-attr]
        assert await told() == (True, True)
        flip_a_bit(running, leaf)
        await found(LiveVerified)
        flip_a_bit(running, leaf)
        await found(LiveDrifted)
        third = nearly(
            running.checkpoints / "step_2", running.checkpoints / "step_3", "model.norm.weight"
        )
        attempt = await running.attempted(third)
        assert attempt.outcome is Outcome.LIVE
        assert attempt.loading is not None
        assert attempt.loading.leaves_shared == 0
        assert (await found(LiveVerified)).generation.number == 3
        assert await told() == (False, False)
