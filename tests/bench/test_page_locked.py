"""What the ring of page-locked buffers gives on this machine's accelerator, and several readers.

No engine is needed: `make bench JAX_PLATFORMS=cuda,cpu ARGS='-k test_page_locked'`. The ring was
written where no accelerator was at hand.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from hotreload.engine.weights.leaf.leaf_rules import Ingredient, Rule
from hotreload.engine.weights.leaf.on_device import can_turn
from hotreload.engine.weights.load import own
from hotreload.engine.weights.load.own import Made, Reader
from hotreload.engine.weights.memory.host_arrays import fresh
from hotreload.engine.weights.memory.page_locked import KIND, SENT_AT_ONCE, Buffer, LockedBuffers
from hotreload.types import Checkpoint
from tests.bench.figures import median
from tests.engine import real

pytestmark = [pytest.mark.bench, pytest.mark.real_engine, pytest.mark.timeout(3600)]

SHAPE = (4096, 4096)
COUNT = 64
ROUNDS = 5
GOAL = 0.6


def seconds_of(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def speed(size: int, work: Callable[[], object]) -> float:
    return size / 1e9 / median([seconds_of(work) for _ in range(ROUNDS)])


def count_here() -> int:
    import jax

    return COUNT if jax.default_backend() != "cpu" else 4  # one is slow at programs


def test_what_page_locked_memory_gives(tmp_path: Path) -> None:
    import jax

    device = jax.devices()[0]
    kinds = [memory.kind for memory in device.addressable_memories()]
    print(f"\n{device}, jax {jax.__version__}, memories {kinds}")
    if KIND not in kinds:
        pytest.skip("the device has no page-locked memory")
    size = COUNT * SENT_AT_ONCE
    values = np.random.default_rng(0).integers(0, 2**16, size // 2, np.uint16)
    (path := tmp_path / "bytes").write_bytes(values.tobytes())
    file, there = os.open(path, os.O_RDONLY), jax.sharding.SingleDeviceSharding(device)
    host, buffer = fresh(SENT_AT_ONCE), Buffer(SENT_AT_ONCE, np.dtype(np.uint16), device)
    ring = LockedBuffers(device, 2)
    ring.check()

    def by_ring() -> jax.Array:
        at = 0
        for memory in ring.memory_for(size):
            at += os.preadv(file, [memory], at)
        return ring.take().block_until_ready()

    for name, total, work in (
        ("reading into usual memory", SENT_AT_ONCE, lambda: os.preadv(file, [host], 0)),
        ("reading into page-locked", SENT_AT_ONCE, lambda: os.preadv(file, [buffer.memory], 0)),
        (
            "usual memory to the device",
            SENT_AT_ONCE,
            lambda: jax.device_put(host, there).block_until_ready(),
        ),
        ("page-locked to the device", SENT_AT_ONCE, lambda: buffer.send().block_until_ready()),
        ("reading into the ring, and from there", size, by_ring),
    ):
        work()
        print(f"{name:40} {speed(total, work):6.2f} GB/s", flush=True)
    assert np.array_equal(np.asarray(by_ring()).reshape(-1), values)
    os.close(file)


def files_of(root: Path) -> Checkpoint:
    chance = np.random.default_rng(0)
    tensors = {
        str(at): chance.integers(0x3C00, 0x3D00, SHAPE, np.uint16).view(ml_dtypes.bfloat16)
        for at in range(count_here())
    }
    save_file(tensors, root / "model.safetensors")
    return real.checked(root)


def in_threads(count: int, names: deque[str], work: Callable[[deque[str]], None]) -> None:
    crew = [threading.Thread(target=work, args=(names,)) for _ in range(count)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join()


def taken(names: deque[str]) -> Iterator[str]:
    while names:
        try:
            yield names.popleft()
        except IndexError:
            return


@contextmanager
def without_ring() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own, "ring_for", lambda *_: None)
        yield


@pytest.mark.parametrize("threads", [1, 2, 4, 8])
def test_the_loader_with_the_ring_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """Each leaf is read, sent, turned and measured as staging does it on an accelerator."""
    import jax

    monkeypatch.setattr(own, "pays_on_device", can_turn)
    checkpoint, rule = files_of(tmp_path), Rule(SHAPE, axes=(1, 0))
    live = jax.device_put(np.zeros(rule.leaf_shape, ml_dtypes.bfloat16), jax.devices()[0])
    made: dict[str, Made] = {}

    def load(names: deque[str]) -> None:
        with closing(Reader(checkpoint, threading.Event(), lambda size: None)) as reader:
            for name in taken(names):
                made[name] = reader.make_leaves([((Ingredient(name, rule),), live)])[0]

    def staged() -> None:
        made.clear()
        in_threads(threads, deque(checkpoint.held), load)

    def usually() -> None:
        with without_ring():
            staged()

    def read(names: deque[str]) -> None:
        file, memory = os.open(tmp_path / "model.safetensors", os.O_RDONLY), memories.pop()
        for name in taken(names):
            os.preadv(file, [memory], checkpoint.held[name].begin)
        os.close(file)
        memories.append(memory)

    def place() -> None:
        sent = [
            jax.device_put(memories[at % threads].view(np.uint16), live.sharding)
            for at in range(len(checkpoint.held))
        ]
        jax.block_until_ready(sent)  # type: ignore[no-untyped-call]

    one = live.nbytes
    memories = [fresh(one) for _ in range(threads)]
    buffers = [Buffer(SENT_AT_ONCE, np.dtype(np.uint16), jax.devices()[0]) for _ in range(3)]

    def place_locked() -> None:
        for at in range(len(checkpoint.held) * one // SENT_AT_ONCE):
            buffers[at % 3].wait()
            buffers[at % 3].send()
        for buffer in buffers:
            buffer.wait()

    ways: dict[str, Callable[[], object]] = {
        "read alone": lambda: in_threads(threads, deque(checkpoint.held), read),
        "place alone, usual memory": place,
        "place alone, page-locked": place_locked,
        "the loader, usual memory": usually,
        "the loader, by the ring": staged,
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for at in range(ROUNDS + 1):
        for name, work in ways.items():
            seconds = seconds_of(work)
            if at:  # the first compiles
                took[name].append(seconds)
    size = sum(held.end - held.begin for held in checkpoint.held.values()) / 1e9
    speeds = {name: size / median(each) for name, each in took.items()}
    least = min(speeds["read alone"], speeds["place alone, page-locked"])
    print(f"\n{threads} readers, {size:.2f} GB on {jax.devices()[0]}, jax {jax.__version__}")
    for name, each in took.items():
        middle, low, high = speeds[name], size / max(each), size / min(each)
        share = f"   {middle / least:4.0%} of min(read, place), goal {GOAL:.0%}"
        print(
            f"{name:28} {middle:6.2f} GB/s ({low:.2f}-{high:.2f})",
            share if "loader" in name else "",
            flush=True,
        )
    with closing(Reader(checkpoint, threading.Event(), lambda size: None)) as reader:
        for name in checkpoint.held:
            tensor, pieces = reader.borrow(Ingredient(name, rule))
            assert sum(piece.nbytes for piece in pieces) == tensor.nbytes
            assert np.array_equal(made[name].leaf, tensor.T)
