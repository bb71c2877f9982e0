"""Trains a tiny checkpoint in seconds, the same bytes each time: Adam, seeded, float32.

A model that is built by hand leaves most of its tensors silent: spoiling them changes no answer. A
trained model has learnt to use all of its tensors.
"""

import zlib
from collections.abc import Callable, Collection, Mapping
from functools import cache

import ml_dtypes
import numpy as np

from hotreload.tiny.sayings import BASE_TEXT, PAD_ID, TUNED_TEXT, answer_ids, asked_ids
from hotreload.tiny.weights import (
    EPSILON,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    LAYERS,
    THETA,
    Arrays,
    TensorArray,
    shapes,
)

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


# --- the network in pure numpy: forwards, and back for the gradients ------------------------------
# Each step returns its result, and a function that takes a gradient back through the step. That
# function adds the gradients of the step's weights to `Network.gradients`.

Back = Callable[[TensorArray], TensorArray]
"""Turns the gradient by a step's result into the gradient by the step's input."""
Result = tuple[TensorArray, Back]


class Network:
    """A tiny model over a batch of sequences of one length: qwen3, qwen2 or llama."""

    def __init__(self, weights: Arrays) -> None:
        self.weights = _wide(weights)
        self.gradients: dict[str, TensorArray] = {}

    def hidden_states(self, ids: TensorArray) -> Result:
        """Return the last hidden states of a batch of sequences, before the head."""
        embedding = self.weights["model.embed_tokens.weight"]
        x = embedding[ids]
        backs: list[Back] = []
        for layer in range(LAYERS):
            for part in (self._attention, self._mlp):
                x, back = self._add_residual(part, f"model.layers.{layer}", x)
                backs.append(back)
        x, back = self._norm("model.norm", x)
        backs.append(back)

        def back_to_embedding(dx: TensorArray) -> TensorArray:
            for each in reversed(backs):
                dx = each(dx)
            rows = np.zeros_like(embedding)
            np.add.at(rows, ids, dx)
            self.gradients["model.embed_tokens.weight"] = rows
            return dx

        return x, back_to_embedding

    def head(self, x: TensorArray) -> Result:
        """Return the logits of hidden states."""
        return self._linear("lm_head", x)

    def logits(self, ids: TensorArray) -> TensorArray:
        """Return the logits after each token of a batch of sequences."""
        return self.head(self.hidden_states(ids)[0])[0]

    def _add_residual(
        self, part: Callable[[str, TensorArray], Result], at: str, x: TensorArray
    ) -> Result:
        y, back = part(at, x)
        return x + y, lambda dx: dx + back(dx)

    def _attention(self, at: str, x: TensorArray) -> Result:
        x, before = self._norm(f"{at}.input_layernorm", x)
        (q, q_back), (k, k_back) = (self._heads(f"{at}.self_attn", part, x) for part in "qk")
        v, v_back = self._linear(f"{at}.self_attn.v_proj", x)
        mixed, mixed_back = _attend(q, k, _split_heads(v))
        y, after = self._linear(f"{at}.self_attn.o_proj", _join_heads(mixed))

        def back(dy: TensorArray) -> TensorArray:
            dq, dk, dv = mixed_back(_split_heads(after(dy)))
            return before(q_back(dq) + k_back(dk) + v_back(_join_heads(dv)))

        return y, back

    def _heads(self, at: str, part: str, x: TensorArray) -> Result:
        """Return queries or keys head by head, rotated, and normed if the architecture does."""
        flat, before = self._linear(f"{at}.{part}_proj", x)
        y = _split_heads(flat)
        normed: Back = _keep_gradient
        if f"{at}.{part}_norm.weight" in self.weights:
            y, normed = self._norm(f"{at}.{part}_norm", y)
        return _rotate(y), lambda dy: before(_join_heads(normed(_rotate(dy, -1))))

    def _mlp(self, at: str, x: TensorArray) -> Result:
        x, before = self._norm(f"{at}.post_attention_layernorm", x)
        gate, gate_back = self._linear(f"{at}.mlp.gate_proj", x)
        up, up_back = self._linear(f"{at}.mlp.up_proj", x)
        share = 1 / (1 + np.exp(-gate))
        y, after = self._linear(f"{at}.mlp.down_proj", gate * share * up)

        def back(dy: TensorArray) -> TensorArray:
            active = after(dy)
            slope = share * (1 + gate * (1 - share))
            return before(gate_back(active * up * slope) + up_back(active * gate * share))

        return y, back

    def _linear(self, name: str, x: TensorArray) -> Result:
        weight, bias = self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias")
        y = x @ weight.T if bias is None else x @ weight.T + bias

        def back(dy: TensorArray) -> TensorArray:
            rows = dy.reshape(-1, dy.shape[-1])
            self.gradients[f"{name}.weight"] = rows.T @ x.reshape(-1, x.shape[-1])
            if bias is not None:
                self.gradients[f"{name}.bias"] = rows.sum(axis=0)
            return dy @ weight

        return y, back

    def _norm(self, name: str, x: TensorArray) -> Result:
        weight = self.weights[f"{name}.weight"]
        size = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + EPSILON)
        flat = x / size

        def back(dy: TensorArray) -> TensorArray:
            self.gradients[f"{name}.weight"] = (dy * flat).reshape(-1, len(weight)).sum(axis=0)
            dflat = dy * weight
            dx: TensorArray = (dflat - flat * np.mean(dflat * flat, -1, keepdims=True)) / size
            return dx

        return flat * weight, back


def _wide(weights: Arrays) -> Mapping[str, TensorArray]:
    """Return the weights in float32, which numpy computes in; float64 stays, for tests."""
    return {
        name: each if each.dtype == np.float64 else each.astype(np.float32, copy=False)
        for name, each in weights.items()
    }


def _keep_gradient(gradient: TensorArray) -> TensorArray:
    return gradient


def _attend(
    q: TensorArray, k: TensorArray, v: TensorArray
) -> tuple[TensorArray, Callable[[TensorArray], tuple[TensorArray, TensorArray, TensorArray]]]:
    """Return the values, mixed by causal attention, and the way back for the gradients."""
    scale = HEAD_DIM**-0.5
    scores = q @ k.swapaxes(-1, -2) * scale
    scores += np.triu(np.full(scores.shape[-2:], -np.inf, scores.dtype), 1)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)

    def back(dy: TensorArray) -> tuple[TensorArray, TensorArray, TensorArray]:
        dshares = dy @ v.swapaxes(-1, -2)
        dscores = shares * (dshares - np.sum(dshares * shares, axis=-1, keepdims=True)) * scale
        return dscores @ k, dscores.swapaxes(-1, -2) @ q, shares.swapaxes(-1, -2) @ dy

    return shares @ v, back


def _rotate(x: TensorArray, direction: int = 1) -> TensorArray:
    """Rotate each pair of a head's halves by its position; with direction -1 rotate it back."""
    half = HEAD_DIM // 2
    speeds = THETA ** -(np.arange(half) / half)
    angles = direction * np.arange(x.shape[-2])[:, None] * speeds
    cos, sin = np.cos(angles).astype(x.dtype), np.sin(angles).astype(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _split_heads(x: TensorArray) -> TensorArray:
    return x.reshape(*x.shape[:-1], HEADS, HEAD_DIM).swapaxes(-2, -3)


def _join_heads(x: TensorArray) -> TensorArray:
    x = x.swapaxes(-2, -3)
    return x.reshape(*x.shape[:-2], HEADS * HEAD_DIM)
