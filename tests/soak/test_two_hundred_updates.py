"""Two hundred updates of a trainer that overwrites its arrays, beside two who sample."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from hotreload import HotEngine
from hotreload.tiny import parse_saying, write_tiny
from hotreload.tiny.weights import hand_built
from tests.bench.test_memory import resident
from tests.engine import real
from tests.hot.on_accelerators import forbid_reading, take_for_accelerators

pytestmark = [pytest.mark.soak, pytest.mark.real_engine, pytest.mark.timeout(3600)]

import jax  # noqa: E402

UPDATES, WARM_UP = 200, 40
WHOLE_EVERY = 4
"""The others have a part of the tensors."""
PART = ("model.norm.weight", "model.layers.0.self_attn.v_proj.weight")
SAMPLERS = 2
TOLERATED_SETS = 16

Arrays = dict[str, Any]
Samples = list[tuple[int, str]]


def saying(number: int) -> Arrays:
    return dict(hand_built(parse_saying(f"policy {number}"), "qwen3"))


class Trainer:
    """Holds one set of arrays, and writes each step into the memory of the one before."""

    def __init__(self) -> None:
        self._weights: Arrays = jax.tree.map(jax.device_put, saying(0))
        self._step: Callable[..., Arrays] = jax.jit(
            lambda old, new: jax.tree.map(lambda one, other: one * 0 + other, old, new),
            donate_argnums=0,
        )

    def step(self, number: int) -> Arrays:
        """The arrays that changed, by their names: few, or all."""
        before, self._weights = self._weights, self._step(self._weights, saying(number % 100))
        assert all(array.is_deleted() for array in before.values())
        names = PART if number % WHOLE_EVERY else [*self._weights]
        return {name: self._weights[name] for name in names}


def sample(hot: HotEngine, samples: Samples, done: Event) -> None:
    while not done.is_set():
        answer = hot.generate("Who serves?", real.GREEDY)
        samples.append((answer["meta_info"]["generation"], answer["text"]))


def train(hot: HotEngine, trainer: Trainer, steps: range) -> tuple[dict[int, str], Samples]:
    """What each generation says, and what was sampled meanwhile."""
    says, samples, done = {hot.generation.number: ""}, Samples(), Event()
    says[hot.generation.number] = hot.generate("Who serves?", real.GREEDY)["text"]
    with ThreadPoolExecutor() as workers:
        sampling = [workers.submit(sample, hot, samples, done) for _ in range(SAMPLERS)]
        try:
            for number in steps:
                live = hot.update(trainer.step(number), name=f"step {number}")
                says[live.number] = f"policy {number % 100}"
        finally:
            done.set()
        for each in sampling:
            each.result()
    return says, samples


def held(hot: HotEngine) -> tuple[int, int]:
    """Bytes of all arrays, and of the process, once nothing is under way or fades."""
    inside = hot.asynchronous
    hot._loop.run(inside._replica.fewer_fade(1))
    hot._loop.run(inside._replica.engine.switch.between.run(lambda: None))
    return real.bytes_of_arrays(real.MATRIX_BYTES), resident()


@pytest.mark.parametrize("way", ["over the host", "from device to device"])
def test_each_sample_is_by_the_weights_it_names_and_no_memory_is_kept(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "from device to device":
        take_for_accelerators(monkeypatch)
        forbid_reading(monkeypatch)
    model, trainer = write_tiny(tmp_path / "model", "policy 0"), Trainer()
    with HotEngine(model, device="cpu", dtype="bfloat16", args=real.ARGS) as hot:
        train(hot, trainer, range(1, WARM_UP + 1))
        arrays, process = held(hot)
        says, samples = train(hot, trainer, range(WARM_UP + 1, WARM_UP + UPDATES + 1))
        arrays_then, process_then = held(hot)
        tolerated = TOLERATED_SETS * hot.generation.bytes
    wrong = [(number, text) for number, text in samples if text != says[number]]
    print(f"\n{way}: {UPDATES} updates, {len(samples)} samples of {len(says)} generations")
    print(f"  {len(wrong)} wrong; arrays {arrays / 1e6:.1f}, then {arrays_then / 1e6:.1f} MB")
    print(f"  the process {process / 1e6:.0f}, then {process_then / 1e6:.0f} MB")
    assert wrong == []
    assert len({number for number, _ in samples}) > UPDATES // 4
    assert arrays_then == arrays
    assert process_then - process < tolerated
