"""The arrays of a tiny model as Tunix holds them: it turns each matrix and divides it by heads."""

from typing import Any

from hotreload.tiny import parse_saying
from hotreload.tiny.weights import HEAD_DIM, HEADS, HIDDEN, hand_built

OWN = {
    "model.embed_tokens.weight": "embedder.input_embedding",
    "model.norm.weight": "final_norm.w",
    "lm_head.weight": "lm_head.w",
    "self_attn.o_proj.weight": "attn.o_proj.w",
    "input_layernorm.weight": "input_layernorm.w",
    "post_attention_layernorm.weight": "post_attention_layernorm.w",
    **{f"self_attn.{part}_proj.weight": f"attn.{part}_proj.w" for part in "qkv"},
    **{f"self_attn.{part}_proj.bias": f"attn.{part}_bias" for part in "qkv"},
    **{f"self_attn.{part}_norm.weight": f"attn.{part}_norm.w" for part in "qk"},
    **{f"mlp.{part}_proj.weight": f"mlp.{part}_proj.kernel" for part in ("gate", "up", "down")},
}


def tunix_model(number: int, arch: str = "qwen3") -> dict[str, Any]:
    """Build a tree of arrays of numpy that says this number."""
    tree: dict[str, Any] = {}
    for name, tensor in hand_built(parse_saying(f"policy {number}"), arch).items():
        *place, last = _own_name(name).split(".")
        node: dict[Any, Any] = tree
        for key in place:
            node = node.setdefault(int(key) if key.isdigit() else key, {})
        node[last] = _own_axes(name, tensor)
    return tree


def _own_name(name: str) -> str:
    if not name.startswith("model.layers."):
        return OWN[name]
    _, _, layer, rest = name.split(".", 3)
    return f"layers.{layer}.{OWN[rest]}"


def _own_axes(name: str, tensor: Any) -> Any:
    if tensor.ndim == 1 or "embed" in name:
        return tensor
    if "o_proj" in name:
        return tensor.T.reshape(HEADS, HEAD_DIM, HIDDEN)
    return tensor.T.reshape(HIDDEN, HEADS, HEAD_DIM) if "self_attn" in name else tensor.T
