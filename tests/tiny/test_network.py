"""Gradients of the tiny network, held against differences of its loss."""

import numpy as np
import pytest

from hotreload.tiny import ARCHS
from hotreload.tiny.sayings import PAD_ID
from hotreload.tiny.trainer import gradients, train_and_keep
from hotreload.tiny.weights import TensorArray

IDS = np.array([[300, 5, 700, 5], [7, 300, 9, 8]])
WANTED = np.array([[PAD_ID, 5, 700, 1], [300, PAD_ID, 256, PAD_ID]])
STEP = 1e-6


def exact(arch: str) -> dict[str, TensorArray]:
    return {name: each.astype(np.float64) for name, each in train_and_keep(arch, {0})[0].items()}


@pytest.mark.parametrize("arch", ARCHS)
def test_each_gradient_is_the_slope_of_the_loss(arch: str) -> None:
    """Along a random direction in each kind of tensor, by differences to both sides."""
    weights, chance = exact(arch), np.random.default_rng(0)
    _, found = gradients(weights, IDS, WANTED)
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        if ".layers.1." in name:
            continue  # what holds in the first layer went through the second
        direction = chance.normal(size=weight.shape)
        above, below = (
            gradients({**weights, name: weight + side * direction}, IDS, WANTED)[0]
            for side in (STEP, -STEP)
        )
        slope = (above - below) / (2 * STEP)
        assert np.sum(found[name] * direction) == pytest.approx(slope, rel=1e-4, abs=1e-7), name
