"""The arrays of a tiny model as bonsai holds them: heads are an axis in its qwen3 alone."""

from typing import Any

from hotreload.tiny import parse_saying
from hotreload.tiny.weights import HEAD_DIM, HEADS, HIDDEN, hand_built
from tests.hot.maxtext_model import as_tree

WHOLE = {
    "model.embed_tokens.weight": "embedder.embedding",
    "model.norm.weight": "final_norm.scale",
    "lm_head.weight": "lm_head.kernel",
}


def bonsai_model(number: int, arch: str) -> dict[str, Any]:
    """Build a tree of arrays of numpy that says this number."""
    tensors = hand_built(parse_saying(f"policy {number}"), arch)
    return as_tree({own_name(name, arch): own_axes(name, arch, tensors[name]) for name in tensors})


def own_name(name: str, arch: str) -> str:
    if name in WHOLE:
        return WHOLE[name]
    name = name.removeprefix("model.")
    if arch != "llama":
        name = name.replace("self_attn", "attn")
    is_norm = name.endswith("norm.weight")
    return name.replace(".weight", ".scale" if is_norm else ".kernel")


def own_axes(name: str, arch: str, tensor: Any) -> Any:
    if arch == "qwen3" and "o_proj" in name:
        return tensor.T.reshape(HEADS, HEAD_DIM, HIDDEN)
    if arch == "qwen3" and "_proj" in name and "attn" in name:
        return tensor.T.reshape(HIDDEN, HEADS, HEAD_DIM)
    return tensor if "embed" in name else tensor.T
