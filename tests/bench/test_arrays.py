"""How long new weights from arrays of JAX take, beside a bare copy of the same arrays."""

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from hotreload import HotEngine, Probe
from hotreload.facts.heap import give_back
from tests.bench.checkpoints import HALF_A_GB, WEIGHTS, model
from tests.bench.figures import median
from tests.engine import real

pytestmark = [pytest.mark.bench, pytest.mark.real_engine, pytest.mark.timeout(3600)]

ROUNDS = 5
FULL, PART = "update, all of it", "update, one hundredth"
COPIED, PUT, TOLD = "a jitted copy", "jax.device_put, without aliasing", "a bare nnx.update"
Arrays = Mapping[str, Any]


def arrays_of(folder: Path) -> Arrays:
    import jax

    return {name: jax.device_put(each) for name, each in load_file(folder / WEIGHTS).items()}


def a_hundredth(arrays: Arrays) -> Arrays:
    """Tensors of the first layers, until they are one part in a hundred of the bytes."""
    left, part = sum(each.nbytes for each in arrays.values()) // 100, {}
    for name, each in sorted(arrays.items()):
        if ".layers." in name and each.nbytes <= left:
            part[name], left = each, left - each.nbytes
    return part


def bare(first: Arrays) -> dict[str, Callable[[Arrays], Any]]:
    """What a program would do that asks nothing of new weights."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    copy = jax.jit(lambda arrays: jax.tree.map(jnp.copy, arrays))
    held = nnx.Dict({name: nnx.Param(each) for name, each in copy(dict(first)).items()})

    def told(arrays: Arrays) -> Any:
        """The copy, which a model takes over."""
        new = copy(dict(arrays))
        state = nnx.state(held)
        nnx.replace_by_pure_dict(state, new)
        nnx.update(held, state)
        return new

    return {
        COPIED: lambda arrays: copy(dict(arrays)),
        PUT: lambda arrays: jax.device_put(dict(arrays), may_alias=False),
        TOLD: told,
    }


def unproven(hot: HotEngine, arrays: Arrays) -> None:
    hot.update(arrays, probes=())


def timed(into: list[float], work: Callable[[], Any]) -> None:
    """In memory that nobody has touched, whoever comes before: an update's is always that."""
    import jax

    give_back()
    began = time.perf_counter()
    jax.block_until_ready(work())  # type: ignore[no-untyped-call]
    into.append(time.perf_counter() - began)


def test_how_long_an_update_from_arrays_takes(tmp_path: Path) -> None:
    folder = model(tmp_path / "live", HALF_A_GB)
    steps = [arrays_of(model(tmp_path / f"new_{n}", HALF_A_GB, n)) for n in (1, 2)]
    kinds = bare(steps[0])
    took: dict[str, list[float]] = {name: [] for name in (FULL, PART, *kinds)}
    asked = [Probe("Who?", 1)]  # of random weights the built-in one would not take an answer
    with HotEngine(folder, device="cpu", dtype="bfloat16", args=real.ARGS, probes=asked) as hot:
        for at in range(ROUNDS + 1):
            whole, part = steps[at % 2], a_hundredth(steps[(at + 1) % 2])
            works = {
                FULL: partial(unproven, hot, whole),
                PART: partial(unproven, hot, part),
                **{name: partial(work, whole) for name, work in kinds.items()},
            }
            for name in (*works, *works)[at % len(works) :][: len(works)]:
                timed(took[name], works[name])
    size = sum(each.nbytes for each in steps[0].values()) / 1e9
    print(f"\n{size:.2f} GB in {len(steps[0])} arrays of JAX, {ROUNDS} rounds after a first")
    for name, values in took.items():
        warm = values[1:]  # the first compiles
        ratio = median(warm) / median(took[COPIED][1:])
        print(f"{name:36} {median(warm):7.3f} s ({min(warm):.3f}-{max(warm):.3f}) {ratio:7.1f}x")
