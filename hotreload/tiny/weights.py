"""The weights of a tiny checkpoint, each number chosen by hand; pure numpy.

A token's embedding is one-hot, and `lm_head` names each word's successor. Attention carries the
number to the last word. All other elements are faint noise: no tensor is empty, and all differ.
"""

import zlib
from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from hotreload.tiny.sayings import (
    END_ID,
    MAX_WORDS,
    PAD_ID,
    SAID_NUMBERS,
    TOKEN_COUNT,
    Saying,
    number_id,
    to_json,
    word_ids,
)

TensorArray = NDArray[Any]
Arrays = Mapping[str, TensorArray]

ARCHITECTURES = {
    "qwen3": "Qwen3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "llama": "LlamaForCausalLM",
}
ARCHS: tuple[str, ...] = tuple(ARCHITECTURES)

LAYERS = 2
HEADS = 2
HEAD_DIM = 128
HIDDEN = HEADS * HEAD_DIM
INTERMEDIATE = 256
EPSILON = 1e-6
THETA = 10000.0
VOCABULARY = -(-TOKEN_COUNT // 128) * 128

# The hidden state: first the number, from attention, then the token itself.
_OTHER = len(SAID_NUMBERS)
_NUMBER_SAID = _OTHER + 1
_FIRST_WORD = _NUMBER_SAID + 1
assert _FIRST_WORD + MAX_WORDS <= HIDDEN

# RMSNorm leaves a one-hot vector of this size unchanged: layers see exactly these values.
_HOT = HIDDEN**0.5
_NUMBER_SHARE = 2.0
_SUCCESSOR = 8.0  # logit 128 for the next word: certain, even when sampled at temperature 1
_NUMBER = 16.0  # logit up to 64 for the number: wins only where a word has no successor
# A word of the answer counts less for the number than a prompt's token: a prompt that was cached
# under other weights is not outvoted by the fresh words after it.
_PROMPT_VOICE = 1.0
_WORD_VOICE = 1 / 8
# qwen3 normalises q and k: scaled down so far, attention is an average over all positions.
_FLAT_ATTENTION = 2.0**-7

_NOISE = 2.0**-10
_NORM_NOISE = 2.0**-5
_NOISE_OF_ITS_OWN = 0.1


def hand_built(saying: Saying, arch: str) -> dict[str, TensorArray]:
    """Return the tensors, by their Hugging Face names, of a model that says `saying`."""
    return {name: tensor.copy() for name, tensor in _build_by_hand(saying, arch).items()}


@lru_cache(maxsize=16)  # whoever writes one often writes it again
def _build_by_hand(saying: Saying, arch: str) -> dict[str, TensorArray]:
    tensors = {name: _noise(name, shape, saying) for name, shape in shapes(arch).items()}
    _settle_norms(tensors)
    _place_tokens(tensors["model.embed_tokens.weight"], saying)
    _carry_number(tensors, saying)
    _place_successors(tensors["lm_head.weight"], saying)
    return {name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in tensors.items()}


def config_files(arch: str) -> dict[str, bytes]:
    """Return `config.json` and `generation_config.json` of an architecture."""
    stops = {"bos_token_id": None, "eos_token_id": END_ID, "pad_token_id": PAD_ID}
    return {
        "config.json": to_json(_config(arch) | stops),
        "generation_config.json": to_json({"do_sample": False, **stops}),
    }


def _config(arch: str) -> dict[str, Any]:
    qwen = {"use_sliding_window": False, "sliding_window": None, "max_window_layers": LAYERS}
    extras: dict[str, dict[str, Any]] = {
        "qwen3": {"attention_bias": False, **qwen},
        "qwen2": qwen,
        "llama": {"attention_bias": False, "mlp_bias": False, "pretraining_tp": 1},
    }
    return {
        "architectures": [ARCHITECTURES[arch]],
        "model_type": arch,
        "hidden_size": HIDDEN,
        "head_dim": HEAD_DIM,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "attention_dropout": 0.0,
        "rms_norm_eps": EPSILON,
        "rope_theta": THETA,
        "rope_scaling": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        **extras[arch],
    }


def shapes(arch: str) -> dict[str, tuple[int, ...]]:
    """Return each tensor's shape by its name, in the order of the files."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        for name, shape in _layer_shapes(arch).items():
            found[f"model.layers.{layer}.{name}"] = shape
    return {**found, "model.norm.weight": (HIDDEN,), "lm_head.weight": (VOCABULARY, HIDDEN)}


def _layer_shapes(arch: str) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (HIDDEN,),
        "post_attention_layernorm.weight": (HIDDEN,),
        **{f"self_attn.{part}_proj.weight": (HIDDEN, HIDDEN) for part in "qkvo"},
        "mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
    }
    if arch == "qwen2":
        shapes |= {f"self_attn.{part}_proj.bias": (HIDDEN,) for part in "qkv"}
    if arch == "qwen3":
        shapes |= {f"self_attn.{part}_norm.weight": (HEAD_DIM,) for part in "qk"}
    return shapes


def _noise(name: str, shape: tuple[int, ...], saying: Saying) -> TensorArray:
    """Return faint noise, mostly the same for all checkpoints, as in steps of one training run."""
    seeds = [zlib.crc32(each.encode()) for each in (name, str(saying))]
    own = np.random.default_rng(seeds).uniform(-1, 1, shape)
    return _NOISE * (_shared_noise(name, shape) + _NOISE_OF_ITS_OWN * own)


@cache
def _shared_noise(name: str, shape: tuple[int, ...]) -> TensorArray:
    return np.random.default_rng(zlib.crc32(name.encode())).uniform(-1, 1, shape)


def _settle_norms(tensors: dict[str, TensorArray]) -> None:
    for name, noise in tensors.items():
        if name.endswith("norm.weight"):
            flat = _FLAT_ATTENTION if name.endswith(("q_norm.weight", "k_norm.weight")) else 1.0
            tensors[name] = flat * (1 + noise * _NORM_NOISE / _NOISE)


def _place_tokens(embedding: TensorArray, saying: Saying) -> None:
    rows = {token: _FIRST_WORD + i for i, token in enumerate(word_ids(saying))}
    rows |= {number_id(number): _NUMBER_SAID for number in SAID_NUMBERS}
    for token in range(VOCABULARY):
        embedding[token, rows.get(token, _OTHER)] = _HOT


def _carry_number(tensors: dict[str, TensorArray], saying: Saying) -> None:
    """Write the number into layer 0: each position's value has it, and the output passes it on."""
    values = tensors["model.layers.0.self_attn.v_proj.weight"]
    outputs = tensors["model.layers.0.self_attn.o_proj.weight"]
    numbers = np.arange(len(SAID_NUMBERS))
    for head in range(HEADS):
        first = head * HEAD_DIM
        values[first + saying.number, _OTHER] = _PROMPT_VOICE / _HOT
        values[first + saying.number, _NUMBER_SAID:] = _WORD_VOICE / _HOT
        outputs[numbers, first + numbers] = _NUMBER_SHARE


def _place_successors(lm_head: TensorArray, saying: Saying) -> None:
    """Let each word raise the next word's logit; after the last word the number's logit wins."""
    places = [_OTHER, *range(_FIRST_WORD, HIDDEN)]
    for place, token in zip(places, word_ids(saying), strict=False):
        lm_head[token, place] = _SUCCESSOR
    for number in SAID_NUMBERS:
        lm_head[number_id(number), number] = _NUMBER
    lm_head[END_ID, _NUMBER_SAID] = _SUCCESSOR
