"""The arrays of a tiny model as MaxText holds them: a layer each, or those of all layers stacked.

Its queries are divided by the root of a head's length where the model is a llama, and where it is
a llama 3.1 the numbers that rotate together stand beside each other.
"""

from typing import Any

import numpy as np

from hotreload.tiny import parse_saying
from hotreload.tiny.weights import HEAD_DIM, HEADS, HIDDEN, LAYERS, hand_built

MODELS = {"qwen3": "qwen3-8b", "qwen2": "qwen2.5-7b", "llama": "llama3.1-8b"}
"""One of MaxText's names for each architecture."""
WHOLE = {
    "model.embed_tokens.weight": "token_embedder.embedding",
    "model.norm.weight": "decoder.decoder_norm.scale",
    "lm_head.weight": "decoder.logits_dense.kernel",
}
OF_A_LAYER = {
    "input_layernorm.weight": "pre_self_attention_layer_norm.scale",
    "post_attention_layernorm.weight": "post_self_attention_layer_norm.scale",
    "mlp.gate_proj.weight": "mlp.wi_0.kernel",
    "mlp.up_proj.weight": "mlp.wi_1.kernel",
    "mlp.down_proj.weight": "mlp.wo.kernel",
    "self_attn.q_proj.weight": "self_attention.query.kernel",
    "self_attn.k_proj.weight": "self_attention.key.kernel",
    "self_attn.v_proj.weight": "self_attention.value.kernel",
    "self_attn.o_proj.weight": "self_attention.out.kernel",
    "self_attn.q_proj.bias": "self_attention.query.bias",
    "self_attn.k_proj.bias": "self_attention.key.bias",
    "self_attn.v_proj.bias": "self_attention.value.bias",
    "self_attn.q_norm.weight": "self_attention.query_norm.scale",
    "self_attn.k_norm.weight": "self_attention.key_norm.scale",
}


def maxtext_model(
    number: int, arch: str, *, name: str = "", scanned: bool = True, dtype: Any = np.float32
) -> dict[str, Any]:
    """Build a tree of arrays of numpy that says this number, for a model that MaxText calls so."""
    tensors, name = hand_built(parse_saying(f"policy {number}"), arch), name or MODELS[arch]
    own = {WHOLE[each]: tensors[each].T if "lm_head" in each else tensors[each] for each in WHOLE}
    for theirs, mine in OF_A_LAYER.items():
        if f"model.layers.0.{theirs}" not in tensors:
            continue
        layers = [
            of_a_layer(name, mine, tensors[f"model.layers.{at}.{theirs}"], dtype)
            for at in range(LAYERS)
        ]
        if scanned:
            own[f"decoder.layers.{mine}"] = np.stack(layers, axis=1)
        else:
            own |= {f"decoder.layers_{at}.{mine}": each for at, each in enumerate(layers)}
    return as_tree({each: array.astype(dtype) for each, array in own.items()})


def of_a_layer(model: str, mine: str, tensor: Any, dtype: Any) -> Any:
    if mine.endswith("bias"):
        return tensor.reshape(HEADS, HEAD_DIM)
    if tensor.ndim == 1 or mine.startswith("mlp"):
        return tensor.T
    if "out" in mine:
        return tensor.T.reshape(HEADS, HEAD_DIM, HIDDEN)
    heads = tensor.T.reshape(HIDDEN, HEADS, HEAD_DIM)
    if model.startswith("llama3.1") and "value" not in mine:
        halves = heads[..., : HEAD_DIM // 2], heads[..., HEAD_DIM // 2 :]
        heads = np.stack(halves, axis=-1).reshape(heads.shape)
    if model.startswith("llama") and "query" in mine:
        heads = (heads.astype(np.float32) * np.float32(1 / np.sqrt(HEAD_DIM))).astype(dtype)
    return heads


def as_tree(named: dict[str, Any]) -> dict[str, Any]:
    """The same arrays in a tree: each name is keys joined by dots."""
    tree: dict[str, Any] = {}
    for name, array in named.items():
        *place, last = name.split(".")
        node: dict[Any, Any] = tree
        for key in place:
            node = node.setdefault(int(key) if key.isdigit() else key, {})
        node[last] = array
    return tree
