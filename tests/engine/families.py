"""The smallest model of each family that docs/start.md lists, with random weights."""

import json
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from hotreload.tiny.sayings import END_ID, PAD_ID, tokenizer_files
from hotreload.tiny.weights import VOCABULARY
from hotreload.tiny.write import encode
from hotreload.types import TensorSpec

WIDTH, EXPERTS = 256, 4
USUAL: Mapping[str, Any] = {
    "hidden_size": WIDTH,
    "head_dim": 128,
    "intermediate_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 4096,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": None,
    "eos_token_id": END_ID,
    "pad_token_id": PAD_ID,
}
WHOLE = {"use_sliding_window": False, "sliding_window": None, "max_window_layers": 2}
MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True}
ROUTED = {**MOE, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0}
LING = {
    **ROUTED,
    "num_experts": EXPERTS,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "score_function": "sigmoid",
}
MLA = {
    **{"kv_lora_rank": 512, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64, "v_head_dim": 128},
    **{"n_routed_experts": EXPERTS, "n_shared_experts": 1, "first_k_dense_replace": 1},
    **ROUTED,
}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "Qwen3ForCausalLM": {"model_type": "qwen3", **WHOLE},
    "Qwen2ForCausalLM": {"model_type": "qwen2", "attention_bias": True, **WHOLE},
    "LlamaForCausalLM": {"model_type": "llama"},
    "InternLM3ForCausalLM": {"model_type": "internlm3", "bias": False, "qkv_bias": False},
    "QWenLMHeadModel": {"model_type": "qwen", "layer_norm_epsilon": 1e-6, "seq_length": 4096},
    "MiMoForCausalLM": {"model_type": "mimo", "attention_bias": True, **WHOLE},
    "Qwen3MoeForCausalLM": {
        **{"model_type": "qwen3_moe", "num_experts": EXPERTS, "mlp_only_layers": []},
        **MOE,
        **WHOLE,
    },
    "Qwen2MoeForCausalLM": {
        **{"model_type": "qwen2_moe", "num_experts": EXPERTS, "attention_bias": True},
        **{"shared_expert_intermediate_size": 128, **MOE, **WHOLE},
    },
    "Glm4MoeForCausalLM": {
        **{"model_type": "glm4_moe", "n_routed_experts": EXPERTS, "n_shared_experts": 1},
        **{"first_k_dense_replace": 1, "use_qk_norm": True, "partial_rotary_factor": 0.5},
        **ROUTED,
    },
    "MiniMaxM2ForCausalLM": {
        **{"model_type": "minimax_m2", "num_local_experts": EXPERTS, "num_experts_per_tok": 2},
        **{"rotary_dim": 64, "use_qk_norm": True, "scoring_func": "sigmoid"},
    },
    "DeepseekV2ForCausalLM": {
        **{"model_type": "deepseek_v2", "q_lora_rank": None, "topk_method": "greedy"},
        **{"scoring_func": "softmax", **MLA},
    },
    "DeepseekV3ForCausalLM": {
        **{"model_type": "deepseek_v3", "q_lora_rank": 128, "topk_method": "noaux_tc"},
        **{"scoring_func": "sigmoid", **MLA},
    },
    "BailingMoeForCausalLM": {
        **{"model_type": "bailing_moe", "use_qk_norm": False, "partial_rotary_factor": 1.0},
        **{"rotary_dim": 128, "moe_router_enable_expert_bias": False, **LING},
    },
    "BailingMoeV2ForCausalLM": {
        **{"model_type": "bailing_moe_v2", "use_qk_norm": True, "partial_rotary_factor": 0.5},
        **{"rotary_dim": 64, "moe_router_enable_expert_bias": True, **LING},
    },
}
ON_BOTH = {
    *("Qwen3ForCausalLM", "Qwen2ForCausalLM", "LlamaForCausalLM"),
    *("InternLM3ForCausalLM", "QWenLMHeadModel"),
}
HAS_CODE_OF_ITS_OWN = {"internlm3", "qwen", "mimo", "minimax_m2", "bailing_moe", "bailing_moe_v2"}
"""Transformers knows no config of these: their folders bring one."""
OWN_CONFIG = """from transformers.configuration_utils import PretrainedConfig


class OwnConfig(PretrainedConfig):
    model_type = "{}"
"""
FUSED = {
    "c_attn.weight": (3 * WIDTH, WIDTH),
    "c_attn.bias": (3 * WIDTH,),
    "query_key_value.weight": (3 * WIDTH, WIDTH),
}
"""Shapes of tensors of which the engine makes several leaves."""


def model_files(name: str) -> dict[str, bytes]:
    """Config and tokenizer of the smallest model of a family."""
    config = {"architectures": [name], **USUAL, **MODELS[name]}
    files = dict(tokenizer_files())
    if config["model_type"] in HAS_CODE_OF_ITS_OWN:
        config["auto_map"] = {"AutoConfig": "configuration_own.OwnConfig"}
        files["configuration_own.py"] = OWN_CONFIG.format(config["model_type"]).encode()
    return {**files, "config.json": json.dumps(config).encode()}


def random_weights(expected: Mapping[str, TensorSpec], seed: int) -> bytes:
    """Weights that say something else with each seed; each layer adds about as much as it gets."""
    dice = np.random.default_rng(seed)
    tensors = {}
    for name, spec in sorted(expected.items()):
        shape = spec.shape or next(s for end, s in FUSED.items() if name.endswith(end))
        drawn = dice.standard_normal(shape)
        if len(shape) == 1:
            drawn = 0.02 * drawn + (1 if name.endswith("weight") else 0)
        elif "embed" not in name and "wte" not in name:
            drawn *= 1.5 / np.sqrt(shape[-1])
        tensors[name] = drawn.astype(ml_dtypes.bfloat16)
    return encode(tensors)
