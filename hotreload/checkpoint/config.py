"""A config.json against the one that is served, and against the tensors beside it.

The fields that shape the running program must be as they are served: weights cannot change them.

A field that the checkpoint's config leaves out is not compared; one that the engine's config
leaves out has its usual default.

An engine believes the config: with wrong sizes it would start, and fail later or talk nonsense.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hotreload.checkpoint.findings import Finding, quote
from hotreload.checkpoint.known_names import CONFIG, FLOATS
from hotreload.errors import cut
from hotreload.types import TensorSpec

_ALWAYS_STATED = (
    "architectures",
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "rms_norm_eps",
    "layer_norm_eps",
    "max_position_embeddings",
    "eos_token_id",
)
_DEFAULTS: Mapping[str, Any] = json.loads(
    Path(__file__).with_name("usual_config.json").read_text("ascii")
)
"""The values of fields that a config.json leaves out; null where there is no such part."""
_DERIVED = ("head_dim", "num_key_value_heads", "rope_theta", "rope_scaling")
_ONLY_WITH_WINDOW = frozenset({"sliding_window", "max_window_layers"})


def differences(stated: Mapping[str, Any], served: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield a finding for each field of the checkpoint's config that is not as it is served."""
    mine, theirs = _normal(stated), _normal(served)
    for name in (*_ALWAYS_STATED, *_DEFAULTS, *_DERIVED):
        if not _is_stated(name, stated) or _is_moot(name, stated, served):
            continue
        expected, got = theirs.get(name), mine.get(name)
        if expected != got:
            due, held = (cut(json.dumps(value), 200) for value in (expected, got))
            words = f"{CONFIG}: {name} is {held}, the engine was started with {due}"
            yield Finding("config_mismatch", words, CONFIG, None, due, held)


def _is_stated(name: str, stated: Mapping[str, Any]) -> bool:
    rope = ("rope_parameters",) if name in ("rope_theta", "rope_scaling") else ()
    return any(key in stated for key in (name, *rope))


def _is_moot(name: str, stated: Mapping[str, Any], served: Mapping[str, Any]) -> bool:
    """Return whether the field has no effect: Qwen states null, or a window it does not use."""
    if name in _ALWAYS_STATED and name not in served:
        return True  # a config without it leaves nothing to compare with
    off = not stated.get("use_sliding_window", True) and not served.get("use_sliding_window", True)
    return off and name in _ONLY_WITH_WINDOW


def _normal(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with its defaults filled in and each field in one spelling."""
    normal = {**_DEFAULTS, **json.loads(json.dumps(dict(stated), default=str))}
    heads, hidden = _count(normal, "num_attention_heads"), _count(normal, "hidden_size")
    if normal.get("head_dim") is None and heads and hidden:
        normal["head_dim"] = hidden // heads
    if normal.get("num_key_value_heads") is None:
        normal["num_key_value_heads"] = normal.get("num_attention_heads")
    layers = normal.get("layer_types")
    if not layers or (isinstance(layers, list) and layers.count("full_attention") == len(layers)):
        normal["layer_types"] = None  # newer libraries spell out the default
    stops = normal.get("eos_token_id")
    normal["eos_token_id"] = sorted(stops, key=str) if isinstance(stops, list) else [stops]
    normal["rope_theta"], normal["rope_scaling"] = _rope(normal)
    return normal


def _rope(stated: Mapping[str, Any]) -> tuple[Any, Any]:
    """Theta and scaling; `rope_parameters` is how newer libraries write both."""
    parameters = stated.get("rope_parameters")
    parameters = dict(parameters) if isinstance(parameters, dict) else {}
    theta = parameters.pop("rope_theta", None) or stated.get("rope_theta") or 10000.0
    scaling = stated.get("rope_scaling") or parameters
    if not isinstance(scaling, dict):
        return theta, scaling
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    rest = {key: value for key, value in scaling.items() if key not in ("rope_type", "type")}
    plain = kind == "default" and not any(isinstance(value, dict) for value in rest.values())
    return theta, None if plain else {"rope_type": kind, **rest}


# --- the sizes in a config.json against the tensors beside it ------------------------------

_EMBEDDING = "model.embed_tokens.weight"
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_OF_TENSORS = (
    ("vocab_size", _EMBEDDING, 0),
    ("hidden_size", _EMBEDDING, 1),
    ("hidden_size", "model.norm.weight", 0),
    ("intermediate_size", "model.layers.0.mlp.gate_proj.weight", 0),
)
"""A size, and the tensor and dimension that are to have it in every model that has both."""
_PLAIN = frozenset({"llama", "mistral", "qwen2", "qwen3"})
"""Kinds of models all of whose layers have heads of one size, and so many of them."""


def contradictions(
    stated: Mapping[str, Any], tensors: Mapping[str, TensorSpec]
) -> Iterator[Finding]:
    """Yield a finding for each stated size that the weights do not have."""
    told: set[str] = set()
    for size, name, at in (*_OF_TENSORS, *_heads(stated)):
        wanted, spec = _size(stated, size), tensors.get(name)
        # Packed integers have other shapes than the matrices they stand for.
        if wanted is None or spec is None or spec.dtype not in FLOATS or size in told:
            continue
        shape = spec.shape or ()
        if at >= len(shape) or shape[at] != wanted:
            told.add(size)
            yield _make_finding(stated, size, f"{quote(name)} is {list(shape)}", name)
    yield from _layers(stated, tensors)


def _heads(stated: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    if stated.get("model_type") in _PLAIN:
        yield "num_attention_heads", "model.layers.0.self_attn.q_proj.weight", 0
        yield "num_key_value_heads", "model.layers.0.self_attn.k_proj.weight", 0


def _size(stated: Mapping[str, Any], name: str) -> int | None:
    """Return the dimension that the tensor must have: heads count times a head's size."""
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
        yield _make_finding(stated, "num_hidden_layers", words)


def _count(stated: Mapping[str, Any], name: str) -> int | None:
    value = stated.get(name)
    return value if type(value) is int and value > 0 else None


def _make_finding(
    stated: Mapping[str, Any], size: str, words: str, tensor: str | None = None
) -> Finding:
    todo = "take the config.json that was saved with these weights"
    message = f"{CONFIG}: {size} is {stated[size]}, but {words}; {todo}"
    return Finding("config_mismatch", message, CONFIG, tensor, str(stated[size]))
