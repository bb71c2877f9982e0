"""Where a matrix of a file is turned sooner on this machine: by the host on the way, or there."""

import time
from pathlib import Path
from threading import Event

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from hotreload.engine.weights.leaf.leaf_rules import Ingredient, Rule
from hotreload.engine.weights.leaf.on_device import can_turn
from hotreload.engine.weights.load import own
from hotreload.engine.weights.load.own import Reader
from tests.bench.figures import median
from tests.engine import real

pytestmark = [pytest.mark.bench, pytest.mark.real_engine]

SHAPES = ((1024, 1024), (3072, 1024), (1024, 3072), (4096, 4096), (11008, 4096))
ROUNDS = 7


def test_turning_a_matrix_on_the_host_and_on_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax

    tensors = {str(shape): np.ones(shape, ml_dtypes.bfloat16) for shape in SHAPES}
    save_file(tensors, tmp_path / "model.safetensors")
    reader = Reader(real.checked(tmp_path), Event(), lambda size: None)
    for name, tensor in tensors.items():
        rule = Rule(tensor.shape, axes=(1, 0))
        live = jax.device_put(np.zeros(rule.leaf_shape, tensor.dtype), jax.devices()[0])
        took: dict[str, list[float]] = {"host": [], "device": []}
        for _ in range(ROUNDS):
            for where, way in (("host", lambda *_: False), ("device", can_turn)):
                monkeypatch.setattr(own, "pays_on_device", way)
                began = time.perf_counter()
                reader.make_leaves([((Ingredient(name, rule),), live)])
                took[where].append(time.perf_counter() - began)
        speeds = {where: tensor.nbytes / 1e9 / median(each) for where, each in took.items()}
        print(f"\n{name:14} host {speeds['host']:5.2f} GB/s   device {speeds['device']:5.2f} GB/s")
