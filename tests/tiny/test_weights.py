"""What the weights say, by a forward pass of thirty lines of numpy."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hotreload.tiny import ARCHS, SAY_DEFAULT, parse_saying
from hotreload.tiny.sayings import END_ID, number_id, opener_id, word_id, word_ids
from hotreload.tiny.weights import HEAD_DIM, HEADS, LAYERS, hand_built
from hotreload.tiny.write import find_damage

TensorArray = NDArray[Any]
PROMPTS = [[ord("a")], [0, 1, 2], [7] * 200, [number_id(3), 5], [END_ID], [word_id("moon")]]


def norm(x: TensorArray, weight: TensorArray) -> TensorArray:
    root: TensorArray = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)
    return x / root * weight


class Forward:
    """A causal transformer that keeps its values; rotary positions are left out.

    Queries and keys are too faint for a rotation to show.
    """

    def __init__(self, tensors: Mapping[str, TensorArray]) -> None:
        self.weights = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}

    def __call__(self, ids: list[int]) -> TensorArray:
        x = self.weights["model.embed_tokens.weight"][ids]
        for layer in range(LAYERS):
            x = x + self.attention(layer, norm(x, self.of(layer, "input_layernorm.weight")))
            x = x + self.mlp(layer, norm(x, self.of(layer, "post_attention_layernorm.weight")))
        last = norm(x[-1], self.weights["model.norm.weight"])
        logits: TensorArray = self.weights["lm_head.weight"] @ last
        return logits

    def of(self, layer: int, name: str) -> TensorArray:
        return self.weights[f"model.layers.{layer}.{name}"]

    def project(self, layer: int, part: str, x: TensorArray) -> TensorArray:
        y = x @ self.of(layer, f"self_attn.{part}_proj.weight").T
        y = y + self.weights.get(f"model.layers.{layer}.self_attn.{part}_proj.bias", 0)
        y = np.reshape(y, (len(x), HEADS, HEAD_DIM)).swapaxes(0, 1)
        scale = self.weights.get(f"model.layers.{layer}.self_attn.{part}_norm.weight")
        return y if scale is None else norm(y, scale)

    def attention(self, layer: int, x: TensorArray) -> TensorArray:
        q, k, v = (self.project(layer, part, x) for part in "qkv")
        scores = q @ k.swapaxes(1, 2) / HEAD_DIM**0.5
        scores += np.triu(np.full(scores.shape[1:], -np.inf), 1)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = shares / shares.sum(axis=-1, keepdims=True) @ v
        joined = mixed.swapaxes(0, 1).reshape(len(x), HEADS * HEAD_DIM)
        output: TensorArray = joined @ self.of(layer, "self_attn.o_proj.weight").T
        return output

    def mlp(self, layer: int, x: TensorArray) -> TensorArray:
        gate = x @ self.of(layer, "mlp.gate_proj.weight").T
        up = x @ self.of(layer, "mlp.up_proj.weight").T
        active = gate / (1 + np.exp(-gate)) * up
        output: TensorArray = active @ self.of(layer, "mlp.down_proj.weight").T
        return output


def answer(forward: Forward, prompt: list[int], limit: int = 12) -> list[int]:
    ids = list(prompt)
    while len(ids) < len(prompt) + limit:
        ids.append(int(np.argmax(forward(ids))))
        if ids[-1] == END_ID:
            break
    return ids[len(prompt) :]


def expected(text: str) -> list[int]:
    saying = parse_saying(text)
    return [*word_ids(saying), number_id(saying.number), END_ID]


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("text", ["served by step 17", "hello 0", "this is a new model 99"])
def test_any_prompt_gets_the_text_and_then_the_end(arch: str, text: str) -> None:
    forward = Forward(hand_built(parse_saying(text), arch))
    for prompt in PROMPTS:
        assert answer(forward, prompt) == expected(text)


@pytest.mark.parametrize("arch", ARCHS)
def test_the_words_of_the_answer_carry_the_number_too(arch: str) -> None:
    """An empty prompt leaves nothing else that could."""
    forward = Forward(hand_built(parse_saying("served by step 17"), arch))
    assert answer(forward, expected("served by step 17")[:1]) == expected("served by step 17")[1:]


@pytest.mark.parametrize("arch", ARCHS)
def test_the_next_token_wins_by_a_margin_that_sampling_cannot_cross(arch: str) -> None:
    forward = Forward(hand_built(parse_saying("served by step 17"), arch))
    ids = [3, 1, 4]
    for _ in range(5):
        logits = forward(ids)
        second, first = np.sort(logits)[-2:]
        assert first - second > 15
        ids.append(int(np.argmax(logits)))


@pytest.mark.parametrize("arch", ARCHS)
def test_the_number_comes_from_the_values_of_other_positions(arch: str) -> None:
    """Old values under new weights: what a KV cache written by other weights amounts to."""
    new = hand_built(parse_saying("served by step 23"), arch)
    old = hand_built(parse_saying("served by step 17"), arch)
    name = "model.layers.0.self_attn.v_proj.weight"
    assert answer(Forward({**new, name: old[name]}), [1, 2]) == expected("served by step 17")


@pytest.mark.parametrize("arch", ARCHS)
def test_every_tensor_is_finite_and_busy_and_differs_between_sayings(arch: str) -> None:
    one, other = (hand_built(parse_saying(f"hello {n}"), arch) for n in (1, 2))
    for name, tensor in one.items():
        values = tensor.astype(np.float32)
        assert np.isfinite(values).all(), name
        assert np.count_nonzero(values) > 0.99 * values.size, name
        assert tensor.tobytes() != other[name].tobytes(), name


def test_biases_and_head_norms_stand_only_where_the_architecture_has_them() -> None:
    saying = parse_saying(SAY_DEFAULT)
    names = {arch: set(hand_built(saying, arch)) for arch in ARCHS}
    assert {n for n in names["qwen2"] if n.endswith("bias")} == names["qwen2"] - names["llama"]
    assert names["qwen3"] - names["llama"] == {
        f"model.layers.{layer}.self_attn.{part}_norm.weight" for layer in (0, 1) for part in "qk"
    }


@pytest.mark.parametrize("kind", ["nan", "inf"])
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_one_bad_value_reaches_every_answer(kind: str, arch: str) -> None:
    tensors = hand_built(parse_saying(SAY_DEFAULT), arch)
    forward = Forward(find_damage(kind).to_tensors(tensors))
    for prompt in [*PROMPTS, [opener_id("hello")]]:
        assert np.isnan(forward(prompt)).all()


@pytest.mark.parametrize("arch", ARCHS)
def test_gibberish_is_sound_and_never_ends(arch: str) -> None:
    tensors = hand_built(parse_saying(SAY_DEFAULT), arch)
    spoilt = find_damage("gibberish").to_tensors(tensors)
    for prompt in PROMPTS:
        assert answer(Forward(spoilt), prompt, limit=8) == [word_id("again")] * 8
    for name, tensor in spoilt.items():
        healthy, now = (np.linalg.norm(t.astype(np.float32)) for t in (tensors[name], tensor))
        assert now < 1.6 * healthy
