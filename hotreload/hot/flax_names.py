"""Maps the names and axes of models in flax, bonsai's and Tunix's, to those of Hugging Face."""

import re
from collections.abc import Sequence

from hotreload.hot.names import Name

_Patterns = Sequence[tuple[str, str, str | None]]
"""Patterns of a program's names, each with Hugging Face's name, and an arrangement or None."""

_LAYER = r"layers\.(\d+)\."
_OF_HEADS = "i o -> o i | d n h -> (n h) d"
"""The axes of an `nnx.Linear`'s kernel, or of an `nnx.Einsum`'s, which has an axis of heads."""

_OF_BONSAI = (
    (r"embedder\.embedding", "model.embed_tokens.weight", None),
    (r"final_norm\.scale", "model.norm.weight", None),
    (r"lm_head\.kernel", "lm_head.weight", "d v -> v d"),
    (
        rf"{_LAYER}(?:self_)?attn\.([qkv])_proj\.kernel",
        r"model.layers.\1.self_attn.\2_proj.weight",
        _OF_HEADS,
    ),
    (
        rf"{_LAYER}(?:self_)?attn\.o_proj\.kernel",
        r"model.layers.\1.self_attn.o_proj.weight",
        "i o -> o i | n h d -> d (n h)",
    ),
    (
        rf"{_LAYER}(?:self_)?attn\.([qkv])_proj\.bias",
        r"model.layers.\1.self_attn.\2_proj.bias",
        None,
    ),
    (
        rf"{_LAYER}(?:self_)?attn\.([qk])_norm\.scale",
        r"model.layers.\1.self_attn.\2_norm.weight",
        None,
    ),
    (
        rf"{_LAYER}mlp\.(gate|up|down)_proj\.kernel",
        r"model.layers.\1.mlp.\2_proj.weight",
        "i o -> o i",
    ),
    (
        rf"{_LAYER}(input|post_attention)_layernorm\.scale",
        r"model.layers.\1.\2_layernorm.weight",
        None,
    ),
)

_OF_TUNIX = (
    (r"embedder\.input_embedding", "model.embed_tokens.weight", None),
    (r"final_norm\.w", "model.norm.weight", None),
    (r"lm_head\.w", "lm_head.weight", "d v -> v d"),
    (
        rf"{_LAYER}attn\.([qkv])_proj\.w",
        r"model.layers.\1.self_attn.\2_proj.weight",
        "d n h -> (n h) d",
    ),
    (rf"{_LAYER}attn\.o_proj\.w", r"model.layers.\1.self_attn.o_proj.weight", "n h d -> d (n h)"),
    (rf"{_LAYER}attn\.([qkv])_bias", r"model.layers.\1.self_attn.\2_proj.bias", None),
    (rf"{_LAYER}attn\.([qk])_norm\.w", r"model.layers.\1.self_attn.\2_norm.weight", None),
    (
        rf"{_LAYER}mlp\.(gate|up|down)_proj\.kernel",
        r"model.layers.\1.mlp.\2_proj.weight",
        "i o -> o i",
    ),
    (rf"{_LAYER}(input|post_attention)_layernorm\.w", r"model.layers.\1.\2_layernorm.weight", None),
)


def bonsai_names(name: str) -> Name | None:
    """Return the Hugging Face name for a tensor of bonsai's qwen3, qwen2 or llama 3.

    If its axes differ, their arrangement is returned, too. None for an unknown name.
    """
    return _look_up(_OF_BONSAI, name)


def tunix_names(name: str) -> Name | None:
    """Return the Hugging Face name for a tensor of Tunix's qwen3, qwen2 or llama 3.

    If its axes differ, their arrangement is returned, too. None for an unknown name.
    """
    return _look_up(_OF_TUNIX, name)


def _look_up(patterns: _Patterns, name: str) -> Name | None:
    """Return the name, with its arrangement if any, by the first pattern that matches all of it."""
    for own, theirs, axes in patterns:
        if found := re.fullmatch(own, name):
            return found.expand(theirs) if axes is None else (found.expand(theirs), axes)
    return None
