"""Maps the names and axes of flax's own models (bonsai) to those of Hugging Face."""

from hotreload.hot.names import Name, by_patterns

_LAYER = r"layers\.(\d+)\."
_OF_HEADS = "i o -> o i | d n h -> (n h) d"
"""The axes of an `nnx.Linear`'s kernel, or of an `nnx.Einsum`'s, which has an axis of heads."""
_NAMES = (
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


def bonsai_names(name: str) -> Name | None:
    """Return the Hugging Face name for a tensor of bonsai's qwen3, qwen2 or llama 3.

    If its axes differ, their arrangement is returned, too. None for an unknown name.
    """
    return by_patterns(_NAMES, name)
