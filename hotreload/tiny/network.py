"""The network of a tiny checkpoint in pure numpy: forwards, and back for the gradients.

Each step returns its result, and a function that takes a gradient back through the step. That
function adds the gradients of the step's weights to `Network.gradients`.
"""

from collections.abc import Callable, Mapping

import numpy as np

from hotreload.tiny.weights import EPSILON, HEAD_DIM, HEADS, LAYERS, THETA, Arrays, TensorArray

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
