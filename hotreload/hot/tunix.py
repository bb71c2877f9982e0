"""Maps the names and axes of Tunix's models to those of Hugging Face."""

from hotreload.hot.names import Name, by_patterns

_LAYER = r"layers\.(\d+)\."
_NAMES = (
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


def tunix_names(name: str) -> Name | None:
    """Return the Hugging Face name for a tensor of Tunix's qwen3, qwen2 or llama 3.

    If its axes differ, their arrangement is returned, too. None for an unknown name.
    """
    return by_patterns(_NAMES, name)
