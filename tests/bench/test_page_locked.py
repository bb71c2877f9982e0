"""What a ring of page-locked buffers would give on this machine's accelerator, and several readers.

Staging has no such ring: no accelerator was at hand to show that it is right. This shows both, on
one: `make bench JAX_PLATFORMS=cuda,cpu ARGS='-k test_page_locked'`, without an engine.
"""

import ctypes
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from hotreload.engine.weights.leaf.leaf_rules import Ingredient, Rule
from hotreload.engine.weights.leaf.on_device import can_turn
from hotreload.engine.weights.load import own
from hotreload.engine.weights.load.own import Made, Reader
from hotreload.engine.weights.memory.host_arrays import fresh
from tests.bench.figures import median
from tests.engine import real

pytestmark = [pytest.mark.bench, pytest.mark.real_engine]

SHAPE = (4096, 4096)
COUNT = 32
ROUNDS = 5
PAGE_LOCKED = "pinned_host"


def speed(size: int, work: Callable[[], object]) -> float:
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return size / 1e9 / median(took)


class Ring:
    """Two page-locked buffers: one is read into while the other goes to the device."""

    def __init__(self, device: Any, size: int) -> None:
        import jax

        self._device = jax.sharding.SingleDeviceSharding(device)
        there = self._device.with_memory_kind(PAGE_LOCKED)
        self._buffers = [jax.device_put(np.zeros(size, np.uint8), there) for _ in range(2)]
        jax.block_until_ready(self._buffers)  # type: ignore[no-untyped-call]
        self._under_way: list[Any] = [None, None]

    def sent(self, file: int, size: int, offsets: Sequence[int]) -> list[Any]:
        import jax

        arrays = []
        for at, offset in enumerate(offsets):
            slot = at % 2
            if self._under_way[slot] is not None:
                self._under_way[slot].block_until_ready()
            begin = self._buffers[slot].unsafe_buffer_pointer()
            os.preadv(file, [(ctypes.c_uint8 * size).from_address(begin)], offset)
            self._under_way[slot] = jax.device_put(self._buffers[slot], self._device)
            arrays.append(self._under_way[slot])
        return arrays


def test_what_page_locked_memory_gives(tmp_path: Path) -> None:
    import jax

    device = jax.devices()[0]
    kinds = [memory.kind for memory in device.addressable_memories()]
    print(f"\n{device}, jax {jax.__version__}, memories {kinds}")
    if PAGE_LOCKED not in kinds:
        pytest.skip("the device has no page-locked memory")
    size, count = 64 << 20, 16
    values = np.random.default_rng(0).integers(0, 256, size * count, np.uint8)
    (path := tmp_path / "bytes").write_bytes(values.tobytes())
    file, there = os.open(path, os.O_RDONLY), jax.sharding.SingleDeviceSharding(device)
    host = fresh(size)
    locked = jax.device_put(host, there.with_memory_kind(PAGE_LOCKED)).block_until_ready()
    ring, offsets = Ring(device, size), [at * size for at in range(count)]
    for name, total, work in (
        ("reading into usual memory", size, lambda: os.preadv(file, [host], 0)),
        (
            "usual memory to the device",
            size,
            lambda: jax.device_put(host, there).block_until_ready(),
        ),
        (
            "usual memory to page-locked",
            size,
            lambda: jax.device_put(host, locked.sharding).block_until_ready(),
        ),
        (
            "page-locked to the device",
            size,
            lambda: jax.device_put(locked, there).block_until_ready(),
        ),
        (
            "reading into a ring, and from there",
            size * count,
            lambda: jax.block_until_ready(ring.sent(file, size, offsets)),  # type: ignore[no-untyped-call]
        ),
    ):
        print(f"{name:40} {speed(total, work):6.2f} GB/s", flush=True)
    arrays = ring.sent(file, size, offsets)
    for array, offset in zip(arrays, offsets, strict=True):
        assert np.array_equal(array, values[offset : offset + size])
    os.close(file)


@pytest.mark.parametrize("threads", [1, 2, 4, 8])
def test_what_several_readers_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """Each leaf is read, sent, turned and measured as staging does it on an accelerator."""
    import jax

    monkeypatch.setattr(own, "pays_on_device", can_turn)
    chance = np.random.default_rng(0)
    tensors = {
        str(at): chance.integers(0x3C00, 0x3D00, SHAPE, np.uint16).view(ml_dtypes.bfloat16)
        for at in range(COUNT if jax.default_backend() != "cpu" else 4)  # one is slow at programs
    }
    save_file(tensors, tmp_path / "model.safetensors")
    checkpoint, rule = real.checked(tmp_path), Rule(SHAPE, axes=(1, 0))
    live = jax.device_put(np.zeros(rule.leaf_shape, ml_dtypes.bfloat16), jax.devices()[0])
    made: dict[str, Made] = {}

    def read(names: deque[str]) -> None:
        reader = Reader(checkpoint, threading.Event(), lambda size: None)
        while names:
            try:
                name = names.popleft()
            except IndexError:
                break
            made[name] = reader.make_leaves([((Ingredient(name, rule),), live)])[0]
        reader.close()

    def staged() -> None:
        made.clear()
        names = deque(tensors)
        crew = [threading.Thread(target=read, args=(names,)) for _ in range(threads)]
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()

    staged()  # compiles
    size = sum(tensor.nbytes for tensor in tensors.values())
    print(f"\n{threads} readers {speed(size, staged):6.2f} GB/s", flush=True)
    for name, tensor in tensors.items():
        assert np.array_equal(made[name].leaf, tensor.T)
