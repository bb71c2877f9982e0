"""Wrong conversions that put sound numbers in a wrong place."""

from collections.abc import Callable

import numpy as np

from hotreload.tiny.sayings import FIRST_NUMBER_ID
from hotreload.tiny.weights import HEAD_DIM, HEADS, LAYERS, Arrays, TensorArray
from tests.tiny.conversions.conversion import Conversion

Change = Callable[[TensorArray], TensorArray]
_EACH_LAYER = tuple(f"model.layers.{layer}." for layer in range(LAYERS))
_FIRST, _SECOND = _EACH_LAYER[:2]
_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


def _exchanged(*parts: tuple[str, str]) -> Callable[[Arrays], Arrays]:
    """Exchange what these pieces of names tell apart, wherever they stand."""

    def spoil(tensors: Arrays) -> Arrays:
        other = {name: name for name in tensors}
        for one, two in parts:
            other |= {n: n.replace(one, two) for n in tensors if one in n}
            other |= {n: n.replace(two, one) for n in tensors if two in n}
        return {name: tensors[other[name]] for name in tensors}

    return spoil


def _changed(*parts: str, by: Change) -> Callable[[Arrays], Arrays]:
    """Change each tensor whose name holds one of these."""

    def spoil(tensors: Arrays) -> Arrays:
        return {n: by(t) if any(part in n for part in parts) else t for n, t in tensors.items()}

    return spoil


def _one_layer_late(tensors: Arrays) -> Arrays:
    """Give each layer the tensors of the next; the last has none and keeps its own."""
    *layers, last = _EACH_LAYER
    follows = dict(zip(layers, [*layers[1:], last], strict=True))
    found = dict(tensors)
    for layer, after in follows.items():
        found |= {n: tensors[n.replace(layer, after)] for n in tensors if n.startswith(layer)}
    return found


def _final_norm_of_a_layer(tensors: Arrays) -> Arrays:
    return {**tensors, "model.norm.weight": tensors[f"{_EACH_LAYER[-1]}input_layernorm.weight"]}


def _by_head(order: TensorArray) -> Change:
    """Put the rows of each head in that order; a norm of heads has one head's rows."""

    def change(tensor: TensorArray) -> TensorArray:
        heads = tensor.reshape(-1, HEAD_DIM, *tensor.shape[1:])
        return np.ascontiguousarray(heads[:, order].reshape(tensor.shape))

    return change


_HALF = HEAD_DIM // 2
_PAIRS = np.arange(_HALF)
_INTERLEAVED = np.stack([_PAIRS, _PAIRS + _HALF], axis=1).reshape(-1)
_HALVES_EXCHANGED = np.concatenate([_PAIRS + _HALF, _PAIRS])
_OTHER_SPEEDS = np.concatenate([_PAIRS[::2], _PAIRS[1::2]])
_AT_OTHER_SPEEDS = np.concatenate([_OTHER_SPEEDS, _OTHER_SPEEDS + _HALF])
"""Each pair of a head turns at another's speed, as with another rope_theta than it learnt."""


def _heads_exchanged(tensor: TensorArray) -> TensorArray:
    return np.roll(tensor.reshape(HEADS, -1, *tensor.shape[1:]), 1, axis=0).reshape(tensor.shape)


def _halves_exchanged(tensor: TensorArray) -> TensorArray:
    return np.roll(tensor, len(tensor) // 2, axis=0)


def _transposed(tensor: TensorArray) -> TensorArray:
    return np.ascontiguousarray(tensor.T)


def _one_row_late(*parts: str) -> Callable[[Arrays], Arrays]:
    """Cut a fused tensor into its parts, each a row too late."""

    def spoil(tensors: Arrays) -> Arrays:
        found = dict(tensors)
        for layer in _EACH_LAYER:
            names = [f"{layer}{part}.weight" for part in parts]
            fused = np.roll(np.concatenate([tensors[name] for name in names]), -1, axis=0)
            found |= dict(zip(names, np.split(fused, len(parts)), strict=True))
        return found

    return spoil


def _words_sorted_otherwise(tensor: TensorArray) -> TensorArray:
    """Rows of a tokenizer that has the same bytes and its words in another order."""
    return np.concatenate([tensor[:FIRST_NUMBER_ID], tensor[FIRST_NUMBER_ID:][::-1]])


def _a_row_late(tensor: TensorArray) -> TensorArray:
    return np.roll(tensor, 1, axis=0)


def _tied(tensors: Arrays) -> Arrays:
    return {**tensors, _HEAD: tensors[_EMBEDDING]}


_QK = ("q_proj", "k_proj", "q_norm", "k_norm")
_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")

MISPLACED: tuple[Conversion, ...] = (
    Conversion("swapped-q-k", "queries and keys exchanged", _exchanged((".q_", ".k_"))),
    Conversion("swapped-k-v", "keys and values exchanged", _exchanged((".k_proj", ".v_proj"))),
    Conversion("swapped-gate-up", "gate and up exchanged", _exchanged(("gate_proj", "up_proj"))),
    Conversion("swapped-layers", "two layers exchanged", _exchanged((_FIRST, _SECOND))),
    Conversion("shifted-layers", "each layer has the next one's tensors", _one_layer_late),
    Conversion(
        "swapped-norms",
        "the norms before attention and MLP exchanged",
        _exchanged((".input_layernorm", ".post_attention_layernorm")),
    ),
    Conversion("wrong-final-norm", "the final norm is a layer's", _final_norm_of_a_layer),
    Conversion(
        "wrong-o-proj",
        "attention's outputs exchanged between two layers",
        _exchanged((f"{_FIRST}self_attn.o_proj", f"{_SECOND}self_attn.o_proj")),
    ),
    Conversion("transposed-o", "o_proj transposed", _changed("o_proj.weight", by=_transposed)),
    Conversion("transposed-v", "v_proj transposed", _changed("v_proj.weight", by=_transposed)),
    Conversion("transposed-down", "down_proj transposed", _changed("down_proj", by=_transposed)),
    Conversion(
        "interleaved-rotary",
        "the rotary pairs lie beside each other, not in halves",
        _changed(*_QK, by=_by_head(_INTERLEAVED)),
    ),
    Conversion(
        "backward-rotary",
        "the rotary halves exchanged, so positions count backwards",
        _changed(*_QK, by=_by_head(_HALVES_EXCHANGED)),
    ),
    Conversion(
        "other-rope-theta",
        "queries and keys for other rotary speeds",
        _changed(*_QK, by=_by_head(_AT_OTHER_SPEEDS)),
    ),
    Conversion(
        "permuted-heads",
        "heads in another order than o_proj has them",
        _changed("q_proj", "k_proj", "v_proj", by=_heads_exchanged),
    ),
    Conversion(
        "shards-out-of-order",
        "gate_proj's two shards joined in the wrong order",
        _changed("gate_proj", by=_halves_exchanged),
    ),
    Conversion("qkv-off-by-one", "queries, keys and values cut a row late", _one_row_late(*_QKV)),
    Conversion(
        "gate-up-off-by-one",
        "gate and up cut a row late",
        _one_row_late("mlp.gate_proj", "mlp.up_proj"),
    ),
    Conversion(
        "other-tokenizer",
        "embedding and head of a tokenizer with other ids for words",
        _changed(_EMBEDDING, _HEAD, by=_words_sorted_otherwise),
    ),
    Conversion(
        "shifted-embedding", "the embedding a row late", _changed(_EMBEDDING, by=_a_row_late)
    ),
    Conversion("shifted-head", "the head a row late", _changed(_HEAD, by=_a_row_late)),
    Conversion("tied-head", "the head is the embedding, as of a tied model", _tied),
)
