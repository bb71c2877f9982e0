"""What staging costs, by our own loader and by upstream's: time, tokens of others, memory."""

import asyncio
import itertools
import json
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hotreload.engine.weights.loaders import Loaders
from hotreload.engine.weights.quiet import Quiet
from hotreload.engine.weights.shadow import load_shadow
from hotreload.tiny import write_tiny
from hotreload.types import Staged
from tests.bench.figures import median, p99
from tests.engine import real

pytestmark = [pytest.mark.bench, pytest.mark.real_engine, pytest.mark.timeout(3600)]

WEIGHTS = "model.safetensors"
SHAPE = {"hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16}
SHAPE |= {"num_key_value_heads": 8, "head_dim": 128}
ROUNDS = 5
BY_OURS, COPIED, BARE = "our own loader", "upstream's, of a private copy", "upstream's, bare"


def model(folder: Path, layers: int, seed: int = 0) -> Path:
    """A Qwen3-shaped bf16 model with random weights: 31 MB a layer."""
    write_tiny(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= SHAPE | {"num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(config))
    chance = np.random.default_rng(seed)
    tensors = {
        name: chance.integers(0x3C00, 0x3D00, shape, np.uint16).view(ml_dtypes.bfloat16)
        for name, shape in shapes(layers, config["vocab_size"]).items()
    }
    save_file(tensors, folder / WEIGHTS)
    return folder


def shapes(layers: int, vocabulary: int) -> dict[str, tuple[int, ...]]:
    hidden, between = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    queries, keys = SHAPE["num_attention_heads"] * 128, SHAPE["num_key_value_heads"] * 128
    layer = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "self_attn.q_norm.weight": (128,),
        "self_attn.k_norm.weight": (128,),
        "mlp.gate_proj.weight": (between, hidden),
        "mlp.up_proj.weight": (between, hidden),
        "mlp.down_proj.weight": (hidden, between),
    }
    ends: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocabulary, hidden),
    }
    for at in range(layers):
        ends |= {f"model.layers.{at}.{name}": shape for name, shape in layer.items()}
    return ends


@asynccontextmanager
async def engine_of(root: Path, layers: int, quiet: Quiet) -> AsyncIterator[Any]:
    folder = model(root / "live", layers)
    async with real.engine_of(folder, root / "spool", quiet=quiet) as engine:
        assert engine._sets.loaders.why_upstream is None
        yield engine


@pytest.mark.parametrize("layers", [20, 64], ids=["0.6 GB", "2 GB"])
async def test_how_long_staging_takes(tmp_path: Path, layers: int) -> None:
    async with engine_of(tmp_path, layers, Quiet(priority="normal")) as engine:
        checkpoints = [real.checked(model(tmp_path / f"new_{n}", layers, n)) for n in (1, 2)]
        size = checkpoints[0].bytes / 1e9
        took: dict[str, list[float]] = {BY_OURS: [], COPIED: [], BARE: []}
        loading = []
        for checkpoint in itertools.islice(itertools.cycle(checkpoints), ROUNDS):
            staged = await timed(took[BY_OURS], engine.stage, checkpoint)
            loading.append(staged.loading)
            await engine.release(staged)
            with by_upstream():
                await engine.release(await timed(took[COPIED], engine.stage, checkpoint))
            await timed(took[BARE], bare, engine, checkpoint.path)
    assert {each.loader for each in loading} == {"own"}
    print(f"\nstaging {size:.2f} GB in {loading[0].leaves_staged} leaves")
    for name, values in took.items():
        times = median(values) / median(took[BY_OURS])
        print(f"{name:32} {median(values):6.2f} s ({min(values):.2f}-{max(values):.2f})", end="")
        print(f"   {size / median(values):5.2f} GB/s   {times:5.1f} times ours")


async def bare(engine: Any, folder: Path) -> None:
    """Upstream's loader alone: no copy, nothing measured or placed anew."""
    import jax
    from flax import nnx

    def load() -> None:
        jax.block_until_ready(nnx.state(load_shadow(engine._sets.loaders._runner, folder)))  # type: ignore[no-untyped-call]

    await asyncio.to_thread(load)


async def timed[T](into: list[float], work: Callable[..., Awaitable[T]], *args: Any) -> T:
    began = time.perf_counter()
    result = await work(*args)
    into.append(time.perf_counter() - began)
    return result


@contextmanager
def by_upstream() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loaders, "why_upstream", "the bench wants it")
        yield


async def test_what_those_who_are_answered_notice(tmp_path: Path) -> None:
    async with engine_of(tmp_path, 20, Quiet()) as engine:
        checkpoint = real.checked(model(tmp_path / "new", 20, 1))
        gaps: dict[str, list[float]] = {"nothing": [], BY_OURS: [], COPIED: []}
        async with client(engine) as came:
            for _ in range(3):
                for name, values in gaps.items():
                    before = len(came)
                    if name == "nothing":
                        await asyncio.sleep(10)
                    elif name == BY_OURS:
                        await engine.release(await engine.stage(checkpoint))
                    else:
                        with by_upstream():
                            await engine.release(await engine.stage(checkpoint))
                    values += [b - a for a, b in itertools.pairwise(came[before:])]
    for name, values in gaps.items():
        times = p99(values) / p99(gaps["nothing"])
        print(f"\nbeside {name:32} p50 {median(values) * 1e3:6.1f} ms", end="")
        print(
            f"   p99 {p99(values) * 1e3:7.1f} ms   {times:.2f} times idle ({len(values)})", end=""
        )


@asynccontextmanager
async def client(engine: Any) -> AsyncIterator[list[float]]:
    """One who streams all the time, and when each of their tokens came."""
    came: list[float] = []

    async def stream() -> None:
        while True:
            sampling = {"max_new_tokens": 400, "ignore_eos": True}
            request = {"text": "hello", "sampling_params": sampling, "stream": True}
            async with aclosing(engine.generate(request)) as answers:
                async for _ in answers:
                    came.append(time.perf_counter())

    task = asyncio.create_task(stream())
    while len(came) < 20:  # noqa: ASYNC110 (a benchmark's start)
        await asyncio.sleep(0.1)
    try:
        yield came
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_a_checkpoint_of_which_little_changed(tmp_path: Path) -> None:
    async with engine_of(tmp_path, 20, Quiet(priority="normal")) as engine:
        whole = real.checked(model(tmp_path / "new", 20, 1))
        tensors = load_file(tmp_path / "live" / WEIGHTS)
        for name in [name for name in tensors if ".layers.7." in name]:
            tensors[name] = tensors[name] * ml_dtypes.bfloat16(2)
        folder = tmp_path / "little"
        write_tiny(folder)
        save_file(tensors, folder / WEIGHTS)
        little = real.checked(folder)
        took: dict[str, list[float]] = {"all of it": [], "one layer of 20": []}
        read = {}
        for _ in range(ROUNDS):
            for name, checkpoint in (("all of it", whole), ("one layer of 20", little)):
                staged: Staged = await timed(took[name], engine.stage, checkpoint)
                assert staged.loading is not None
                read[name] = staged.loading.bytes_read
                await engine.release(staged)
    for name, values in took.items():
        print(f"\n{name:16} {median(values):6.2f} s   {read[name] / 1e6:7.1f} MB read", end="")


async def test_how_much_memory_staging_takes(tmp_path: Path) -> None:
    async with engine_of(tmp_path, 20, Quiet()) as engine:
        checkpoint = real.checked(model(tmp_path / "new", 20, 1))
        for name, choose in ((BY_OURS, None), (COPIED, by_upstream)):
            for _ in range(2):
                with Peak() as peak:
                    if choose is None:
                        staged = await engine.stage(checkpoint)
                    else:
                        with choose():
                            staged = await engine.stage(checkpoint)
                times = peak.rise / checkpoint.bytes
                await engine.release(staged)
            print(f"\n{name:32} {times:.2f} times the checkpoint at the peak", end="")


class Peak:
    """How much memory the process took at most, above where it began."""

    rise = 0

    def __enter__(self) -> "Peak":
        self._over = threading.Event()
        self._began = resident()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.01):
            self.rise = max(self.rise, resident() - self._began)


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
