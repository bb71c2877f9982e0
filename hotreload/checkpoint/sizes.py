"""Compares the sizes in a config.json with the shapes of the tensors beside it.

An engine believes the config: it would start on the wrong sizes, and fail later or talk nonsense.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hotreload.checkpoint.file_names import CONFIG
from hotreload.checkpoint.findings import Finding, quoted
from hotreload.types import TensorSpec

_EMBEDDING = "model.embed_tokens.weight"
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_OF_TENSORS = (
    ("vocab_size", _EMBEDDING, 0),
    ("hidden_size", _EMBEDDING, 1),
    ("hidden_size", "model.norm.weight", 0),
    ("intermediate_size", "model.layers.0.mlp.gate_proj.weight", 0),
)
"""A size, and the tensor and dimension that are to have it in every model that has both."""
_FLOATS = frozenset({"BF16", "F16", "F32", "F64", "F8_E4M3", "F8_E5M2"})
_PLAIN = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Kinds of models all of whose layers have heads of one size, and so many of them."""


def contradictions(
    stated: Mapping[str, Any], tensors: Mapping[str, TensorSpec]
) -> Iterator[Finding]:
    """A finding for each size that the weights do not have; what is not stated is not compared."""
    told: set[str] = set()
    for size, name, at in (*_OF_TENSORS, *_heads(stated)):
        wanted, spec = _size(stated, size), tensors.get(name)
        # Packed integers have other shapes than the matrices they stand for.
        if wanted is None or spec is None or spec.dtype not in _FLOATS or size in told:
            continue
        shape = spec.shape or ()
        if at >= len(shape) or shape[at] != wanted:
            told.add(size)
            yield _finding(stated, size, f"{quoted(name)} is {list(shape)}", name)
    yield from _layers(stated, tensors)


def _heads(stated: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    if stated.get("model_type") in _PLAIN:
        yield "num_attention_heads", "model.layers.0.self_attn.q_proj.weight", 0
        yield "num_key_value_heads", "model.layers.0.self_attn.k_proj.weight", 0


def _size(stated: Mapping[str, Any], name: str) -> int | None:
    """The dimension that the tensor must have: a number of heads is multiplied by a head's size."""
    size = _count(stated, name)
    if size is None or not name.endswith("_heads"):
        return size
    hidden, heads = _count(stated, "hidden_size"), _count(stated, "num_attention_heads")
    each = _count(stated, "head_dim") or (hidden // heads if hidden and heads else None)
    return size * each if each else None


def _layers(stated: Mapping[str, Any], tensors: Mapping[str, TensorSpec]) -> Iterator[Finding]:
    wanted = _count(stated, "num_hidden_layers")
    held = {int(found[1]) for found in map(_LAYER.match, tensors) if found}
    # Layers that guess further tokens are stored behind the others, and not counted with them.
    more = _count(stated, "num_nextn_predict_layers") or 0
    if wanted and held and not wanted <= len(held) <= wanted + more:
        words = f"the weights have {len(held)} layers"
        yield _finding(stated, "num_hidden_layers", words)


def _count(stated: Mapping[str, Any], name: str) -> int | None:
    value = stated.get(name)
    return value if type(value) is int and value > 0 else None


def _finding(
    stated: Mapping[str, Any], size: str, words: str, tensor: str | None = None
) -> Finding:
    todo = "take the config.json that was saved with these weights"
    message = f"{CONFIG}: {size} is {stated[size]}, but {words}; {todo}"
    return Finding("config_mismatch", message, CONFIG, tensor, str(stated[size]))
