"""Qwen3-shaped bf16 checkpoints of random weights, of any size and any number of leaves."""

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from hotreload.engine.weights.load.loaders import Loaders
from hotreload.tiny import write_tiny

WEIGHTS = "model.safetensors"
HEAD_DIM = 128


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides how many leaves a model has, and how large they are."""

    layers: int
    hidden: int = 1024
    between: int = 3072
    heads: int = 16
    key_heads: int = 8

    @property
    def config(self) -> dict[str, int]:
        return {
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "intermediate_size": self.between,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_heads,
            "head_dim": HEAD_DIM,
        }

    def tensors(self, vocabulary: int) -> dict[str, tuple[int, ...]]:
        queries, keys = self.heads * HEAD_DIM, self.key_heads * HEAD_DIM
        layer = {
            "input_layernorm.weight": (self.hidden,),
            "post_attention_layernorm.weight": (self.hidden,),
            "self_attn.q_proj.weight": (queries, self.hidden),
            "self_attn.k_proj.weight": (keys, self.hidden),
            "self_attn.v_proj.weight": (keys, self.hidden),
            "self_attn.o_proj.weight": (self.hidden, queries),
            "self_attn.q_norm.weight": (HEAD_DIM,),
            "self_attn.k_norm.weight": (HEAD_DIM,),
            "mlp.gate_proj.weight": (self.between, self.hidden),
            "mlp.up_proj.weight": (self.between, self.hidden),
            "mlp.down_proj.weight": (self.hidden, self.between),
        }
        whole: dict[str, tuple[int, ...]] = {
            "model.embed_tokens.weight": (vocabulary, self.hidden),
            "model.norm.weight": (self.hidden,),
            "lm_head.weight": (vocabulary, self.hidden),
        }
        for at in range(self.layers):
            whole |= {f"model.layers.{at}.{name}": shape for name, shape in layer.items()}
        return whole


HALF_A_GB, TWO_GB, FOUR_GB = Shape(20), Shape(64), Shape(128)
"""31 MB a layer."""


def model(folder: Path, shape: Shape, seed: int = 0) -> Path:
    """A model whose random weights are decided by the seed."""
    write_tiny(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | shape.config))
    chance = np.random.default_rng(seed)
    tensors = {
        name: chance.integers(0x3C00, 0x3D00, size, np.uint16).view(ml_dtypes.bfloat16)
        for name, size in shape.tensors(config["vocab_size"]).items()
    }
    save_file(tensors, folder / WEIGHTS)
    return folder


def with_layers_changed(like: Path, folder: Path, layers: Collection[int]) -> Path:
    """The same model but for these layers, which are twice as large in every value."""
    write_tiny(folder)
    (folder / "config.json").write_text((like / "config.json").read_text())
    tensors = load_file(like / WEIGHTS)
    for name in tensors:
        if any(f".layers.{layer}." in name for layer in layers):
            tensors[name] = tensors[name] * ml_dtypes.bfloat16(2)
    save_file(tensors, folder / WEIGHTS)
    return folder


@contextmanager
def by_upstream() -> Iterator[None]:
    """Within it, upstream's loader reads a private copy, as it does what ours does not know."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Loaders, "why_upstream", "the bench wants it")
        yield
