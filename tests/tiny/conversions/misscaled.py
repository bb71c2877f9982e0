"""Wrong conversions that change the numbers: lost scales, offsets, precision, a part left out."""

from collections.abc import Callable

import ml_dtypes
import numpy as np

from hotreload.tiny.weights import HEAD_DIM, INTERMEDIATE, LAYERS, Arrays, TensorArray
from tests.tiny.conversions.conversion import Conversion, Past

_LAST = f"model.layers.{LAYERS - 1}."


def _with(tensors: Arrays, end: str, by: Callable[[TensorArray], TensorArray]) -> Arrays:
    """Change what these names end in, computed in float32."""
    if not any(name.endswith(end) for name in tensors):
        raise ValueError(f"no tensor ends in {end!r} here: choose another architecture")
    return {
        name: by(each.astype(np.float32)).astype(each.dtype) if name.endswith(end) else each
        for name, each in tensors.items()
    }


def _all_with(*ends: str, by: Callable[[TensorArray], TensorArray]) -> Callable[[Arrays], Arrays]:
    def spoil(tensors: Arrays) -> Arrays:
        for end in ends:
            tensors = _with(tensors, end, by)
        return tensors

    return spoil


def _one_more(tensor: TensorArray) -> TensorArray:
    more: TensorArray = tensor + 1
    return more


def _folded_scale(tensors: Arrays) -> Arrays:
    """Scale the queries as attention does, which scales them again."""
    end = "q_norm.weight" if any(n.endswith("q_norm.weight") for n in tensors) else "q_proj.weight"
    found = _with(tensors, end, _scaled)
    biased = any(name.endswith("q_proj.bias") for name in tensors)
    return _with(found, "q_proj.bias", _scaled) if biased else found


def _scaled(tensor: TensorArray) -> TensorArray:
    scaled: TensorArray = tensor * HEAD_DIM**-0.5
    return scaled


def _in_four_bits(tensor: TensorArray) -> TensorArray:
    """Round to 15 steps from the smallest to the largest, one scale for the whole tensor."""
    scale = max(float(np.abs(tensor).max()) / 7, 1e-30)
    return np.round(tensor / scale) * scale


def _through_fp8(tensor: TensorArray) -> TensorArray:
    return tensor.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)


def _without_a_shard(tensor: TensorArray) -> TensorArray:
    """Leave out half of the neurons: what one expert is to a model that has experts."""
    tensor[:, INTERMEDIATE // 2 :] = 0
    return tensor


def _stale_scales(tensors: Arrays, past: Past) -> Arrays:
    """Quantize each row of a matrix to bytes by its own scale, and back by that of long ago."""
    return {
        name: _requantized(each, past.early[name]) if name.endswith("proj.weight") else each
        for name, each in tensors.items()
    }


def _requantized(tensor: TensorArray, old: TensorArray) -> TensorArray:
    wide, stale = tensor.astype(np.float32), old.astype(np.float32)
    scale, stale_scale = (np.abs(each).max(axis=1, keepdims=True) / 127 for each in (wide, stale))
    found: TensorArray = (np.round(wide / scale) * stale_scale).astype(tensor.dtype)
    return found


def _last_layer_as_drawn(tensors: Arrays) -> Arrays:
    """Leave the last layer's matrices as a dummy start draws them."""
    chance = np.random.default_rng(0)
    return {
        name: chance.normal(0, 0.02, each.shape).astype(each.dtype)
        if name.startswith(_LAST) and each.ndim == 2
        else each
        for name, each in tensors.items()
    }


_LAYER_NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")

MISSCALED: tuple[Conversion, ...] = (
    Conversion(
        "missing-norm-scales",
        "the norms' scales of all layers are ones",
        _all_with(*_LAYER_NORMS, by=np.ones_like),
    ),
    Conversion(
        "missing-final-norm",
        "the final norm's scales are ones",
        _all_with("model.norm.weight", by=np.ones_like),
    ),
    Conversion(
        "offset-norms",
        "the norms' scales are one more, as those of Gemma are meant",
        _all_with(*_LAYER_NORMS, by=_one_more),
    ),
    Conversion(
        "missing-head-norms",
        "the scales of queries' and keys' norms are ones (qwen3)",
        _all_with("q_norm.weight", "k_norm.weight", by=np.ones_like),
    ),
    Conversion(
        "missing-biases",
        "the biases are zero (qwen2)",
        _all_with("q_proj.bias", "k_proj.bias", "v_proj.bias", by=np.zeros_like),
    ),
    Conversion("scaled-twice", "attention's scale folded into the queries", _folded_scale),
    Conversion(
        "stale-scales", "quantized, and back by another step's scales", from_past=_stale_scales
    ),
    Conversion(
        "four-bits", "matrices rounded to four bits", _all_with("proj.weight", by=_in_four_bits)
    ),
    Conversion(
        "through-fp8", "matrices cast to fp8 and back", _all_with("proj.weight", by=_through_fp8)
    ),
    Conversion(
        "missing-shard",
        "half of each MLP is zero, as an expert that was left out",
        _all_with("down_proj.weight", by=_without_a_shard),
    ),
    Conversion("random-layer", "the last layer was never loaded", _last_layer_as_drawn),
)
