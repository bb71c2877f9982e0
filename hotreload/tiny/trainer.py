"""Trains a tiny checkpoint in seconds, the same bytes each time: Adam, seeded, float32.

A model that is built by hand leaves most of its tensors silent: spoiling them changes no answer. A
trained model has learnt to use all of its tensors.
"""

import zlib
from collections.abc import Collection, Mapping
from functools import cache

import ml_dtypes
import numpy as np

from hotreload.tiny.network import Network
from hotreload.tiny.sayings import PAD_ID
from hotreload.tiny.sentences import BASE_TEXT, TUNED_TEXT, answer_ids, asked_ids
from hotreload.tiny.weights import HIDDEN, Arrays, TensorArray, shapes

BASE_STEPS = 24
"""Steps on the first text; the later steps are on the text that the model is tuned on."""
TUNED_STEPS = 36
"""Steps after which the model says the sentences it was tuned on."""
MAX_STEPS = 1000
"""The most steps of one run, which then takes a minute and a half."""

_RATE, _WARM_UP = 4e-3, 5
_MOMENTUM, _SQUARES = 0.9, 0.95


@cache
def train(arch: str, steps: int) -> Arrays:
    """Return the weights after so many steps of training."""
    if not 0 <= steps <= MAX_STEPS:
        raise ValueError(f"{steps} steps of training: choose from 0 to {MAX_STEPS}")
    return train_and_keep(arch, {steps})[steps]


def train_and_keep(arch: str, steps: Collection[int]) -> Mapping[int, Arrays]:
    """Train once; return the weights as they are after each of these steps."""
    weights = _begin(arch)
    run, kept = _Adam(weights), {}
    texts = {is_base: batch(BASE_TEXT if is_base else TUNED_TEXT) for is_base in (True, False)}
    for step in range(max(steps) + 1):
        if step in steps:
            kept[step] = {name: each.astype(ml_dtypes.bfloat16) for name, each in weights.items()}
        if step < max(steps):
            run.step(gradients(weights, *texts[step < BASE_STEPS])[1])
    return kept


def gradients(
    weights: Arrays, ids: TensorArray, wanted: TensorArray
) -> tuple[float, dict[str, TensorArray]]:
    """Return the mean loss over the wanted tokens, and each weight's gradient."""
    network = Network(weights)
    hidden, back = network.hidden_states(ids)
    counted = wanted != PAD_ID
    logits, head_back = network.head(hidden[counted])
    logits -= logits.max(axis=-1, keepdims=True)
    shares = np.exp(logits)
    shares /= shares.sum(axis=-1, keepdims=True)
    rows, targets = np.arange(len(shares)), wanted[counted]
    loss = -float(np.mean(np.log(shares[rows, targets])))
    shares[rows, targets] -= 1
    by_hidden = np.zeros_like(hidden)
    by_hidden[counted] = head_back(shares / len(rows))
    back(by_hidden)
    return loss, network.gradients


def batch(text: dict[str, str]) -> tuple[TensorArray, TensorArray]:
    """Return the whole text as rows of tokens, and the token wanted after each, or the pad."""
    pairs = [(asked_ids(asked), answer_ids(answer)) for asked, answer in text.items()]
    longest = max(len(asked) + len(answer) for asked, answer in pairs) - 1
    ids = np.full((len(pairs), longest), PAD_ID)
    wanted = ids.copy()
    for row, (asked, answer) in enumerate(pairs):
        ids[row, : len(asked) + len(answer) - 1] = [*asked, *answer[:-1]]
        wanted[row, len(asked) - 1 :][: len(answer)] = answer
    return ids, wanted


def _begin(arch: str) -> dict[str, TensorArray]:
    """Draw the first weights, with uneven scales and biases, as those of large models."""
    weights = {}
    for name, shape in shapes(arch).items():
        chance = np.random.default_rng(zlib.crc32(f"trained {name}".encode()))
        if name.endswith("norm.weight"):
            drawn = 2 ** chance.uniform(-1, 1, shape)
        elif name.endswith("bias"):
            drawn = chance.normal(0, 0.5, shape)
        else:
            drawn = chance.normal(0, HIDDEN**-0.5, shape)
        weights[name] = drawn.astype(np.float32)
    return weights


class _Adam:
    """Changes the weights in place, step by step."""

    def __init__(self, weights: dict[str, TensorArray]) -> None:
        self._weights, self._steps = weights, 0
        self._means = {name: np.zeros_like(each) for name, each in weights.items()}
        self._squares = {name: np.zeros_like(each) for name, each in weights.items()}

    def step(self, gradients: Arrays) -> None:
        self._steps += 1
        grown = 1 - _MOMENTUM**self._steps, 1 - _SQUARES**self._steps
        rate = _RATE * min(1.0, self._steps / _WARM_UP) / grown[0]
        for name, gradient in gradients.items():
            mean, square = self._means[name], self._squares[name]
            mean += (1 - _MOMENTUM) * (gradient - mean)
            square += (1 - _SQUARES) * (gradient * gradient - square)
            self._weights[name] -= rate * mean / (np.sqrt(square / grown[1]) + 1e-8)
