"""Maps the names and axes of MaxText's models to those of Hugging Face."""

import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from hotreload.errors import BadRequest, show_value
from hotreload.hot.names import Name

_Row = tuple[str, str, str]
"""Hugging Face's name, the axes of MaxText's array, and the axes of Hugging Face's tensor."""
_ROOT = re.compile(r"(?:base\.|params\.)*")
_LAYER = re.compile(r"decoder\.layers(?:_(\d+))?\.(.+)")
_TABLE: Mapping[str, _Row] = MappingProxyType(
    {
        "token_embedder.embedding": ("model.embed_tokens.weight", "v d", "v d"),
        "decoder.decoder_norm.scale": ("model.norm.weight", "d", "d"),
        "decoder.logits_dense.kernel": ("lm_head.weight", "d v", "v d"),
    }
)
_OF_A_LAYER: Mapping[str, _Row] = MappingProxyType(
    {
        "pre_self_attention_layer_norm.scale": ("input_layernorm.weight", "d", "d"),
        "post_self_attention_layer_norm.scale": ("post_attention_layernorm.weight", "d", "d"),
        "self_attention.query.kernel": ("self_attn.q_proj.weight", "d n h", "(n h) d"),
        "self_attention.key.kernel": ("self_attn.k_proj.weight", "d n h", "(n h) d"),
        "self_attention.value.kernel": ("self_attn.v_proj.weight", "d n h", "(n h) d"),
        "self_attention.out.kernel": ("self_attn.o_proj.weight", "n h d", "d (n h)"),
        "self_attention.query.bias": ("self_attn.q_proj.bias", "n h", "(n h)"),
        "self_attention.key.bias": ("self_attn.k_proj.bias", "n h", "(n h)"),
        "self_attention.value.bias": ("self_attn.v_proj.bias", "n h", "(n h)"),
        "self_attention.query_norm.scale": ("self_attn.q_norm.weight", "h", "h"),
        "self_attention.key_norm.scale": ("self_attn.k_norm.weight", "h", "h"),
        "mlp.wi_0.kernel": ("mlp.gate_proj.weight", "i o", "o i"),
        "mlp.wi_1.kernel": ("mlp.up_proj.weight", "i o", "o i"),
        "mlp.wo.kernel": ("mlp.down_proj.weight", "i o", "o i"),
    }
)
_ROTATED = ("self_attention.query.kernel", "self_attention.key.kernel")
_PAIRED = ("d n (h 2)", "(n 2 h) d")
"""Axes of llama 3.1's queries and keys: the two numbers that rotate together are neighbours."""
_FAMILIES = re.compile(r"llama[23]|llama3\.1|qwen2|qwen2\.5|qwen3")


def maxtext_names(model_name: str) -> Callable[[str], Name | None]:
    """Return the lookup of Hugging Face names for a dense model of MaxText's `model_name`.

    Layers may be scanned (one array stacks the tensors of all layers) or lie one by one.
    """
    family = re.sub(r"-\d.*", "", model_name) if isinstance(model_name, str) else ""
    if not _FAMILIES.fullmatch(family):
        raise BadRequest(
            f"the arrays of a MaxText model called {show_value(model_name)} are not known: give "
            "'llama3.1' where rope_type is that or the model is one, 'llama3', 'llama2', 'qwen2', "
            "'qwen2.5' or 'qwen3' for what is built like these, or a table of your own"
        )
    return partial(_look_up, family)


def _look_up(family: str, name: str) -> Name | None:
    own = _ROOT.sub("", name, count=1)
    if own in _TABLE:
        theirs, before, after = _TABLE[own]
        return theirs, f"{before} -> {after}"
    found = _LAYER.fullmatch(own)
    if found is None or found[2] not in _OF_A_LAYER:
        return None
    layer, part = found.groups()
    theirs, before, after = _OF_A_LAYER[part]
    if family == "llama3.1" and part in _ROTATED:
        before, after = _PAIRED
    if layer is None:
        first, *others = before.split(" ", 1)
        layer, before = "{layer}", " ".join((first, "layer", *others))
    full, axes = f"model.layers.{layer}.{theirs}", f"{before} -> {after}"
    if family.startswith("llama") and part == "self_attention.query.kernel":
        return full, axes, _root_of_a_head
    return full, axes


def _root_of_a_head(shape: tuple[int, ...]) -> float:
    """Return attention's divisor, which the queries of MaxText's llama have folded in."""
    return math.sqrt(shape[-1])
