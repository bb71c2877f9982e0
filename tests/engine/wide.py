"""Tiny checkpoints with more attention heads, which as many devices can share."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from hotreload.tiny.weights import HEADS

WEIGHTS = "model.safetensors"


def widened(folder: Path, heads: int = 4, kv_heads: int = 1) -> Path:
    """The tiny model with so many heads of queries, and of keys and values; it says what it said.

    Those that are there are repeated, or the second is left out. What they say together is what
    they said before, to the bit where the numbers are powers of two.
    """
    config, file = folder / "config.json", folder / WEIGHTS
    sizes = {"num_attention_heads": heads, "num_key_value_heads": kv_heads}
    config.write_text(json.dumps(json.loads(config.read_text()) | sizes))
    counts = {"q_proj": heads, "k_proj": kv_heads, "v_proj": kv_heads, "o_proj": heads}
    save_file({name: _wide(name, each, counts) for name, each in load_file(file).items()}, file)
    return folder


def rewritten(folder: Path, *, factor: float, names: tuple[str, ...]) -> Path:
    """The checkpoint with these tensors multiplied, in a file of the same size."""
    tensors = load_file(folder / WEIGHTS)
    for name in names:
        tensors[name] = (tensors[name].astype(np.float32) * factor).astype(tensors[name].dtype)
    save_file(tensors, folder / WEIGHTS)
    return folder


def _wide(name: str, tensor: Any, counts: dict[str, int]) -> Any:
    count = next((count for part, count in counts.items() if part in name), None)
    if count is None:
        return tensor
    if "o_proj" not in name:
        return _repeated(tensor, count)
    return np.ascontiguousarray(_repeated(tensor.T, count).T * tensor.dtype.type(HEADS / count))


def _repeated(tensor: Any, count: int) -> Any:
    """The heads, which are the tensor's rows, as often as makes so many."""
    each = tensor.reshape(HEADS, -1, *tensor.shape[1:])
    chosen = [at * HEADS // count for at in range(count)]
    return np.ascontiguousarray(each[chosen].reshape(-1, *tensor.shape[1:]))
