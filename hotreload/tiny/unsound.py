"""Damages to a tiny checkpoint, each of which the checks or the probe find."""

import difflib
import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hotreload.tiny.sayings import word_id
from hotreload.tiny.shards import encode_header
from hotreload.tiny.weights import Arrays, TensorArray

Index = dict[str, str]
"""Each tensor's name, and the name of the file that holds it."""


def _keep[T](value: T) -> T:
    return value


@dataclass(frozen=True, slots=True)
class Damage:
    """One kind of damage: its name, a line that describes it, and its change at each stage."""

    kind: str
    meaning: str
    to_tensors: Callable[[Arrays], Arrays] = _keep
    to_index: Callable[[Index], Index] | None = None
    """The change of the index; a checkpoint of one weight file gets an index for it."""
    to_last_file: Callable[[bytes], bytes] = _keep


_MATRIX = "model.layers.0.mlp.up_proj.weight"
_FIRST_NORM = "model.layers.0.input_layernorm.weight"


def _without_a_tensor(tensors: Arrays) -> Arrays:
    return {name: tensor for name, tensor in tensors.items() if name != _MATRIX}


def _with_a_tensor_of_no_layer(tensors: Arrays) -> Arrays:
    # Not last: `lm_head.weight` ends the last shard of every damaged checkpoint.
    return {_MATRIX.replace(".0.", ".99."): tensors[_MATRIX], **tensors}


def _with_a_row_less(tensors: Arrays) -> Arrays:
    return {**tensors, _MATRIX: tensors[_MATRIX][:-1]}


def _with_one_in_float32(tensors: Arrays) -> Arrays:
    return {**tensors, _MATRIX: tensors[_MATRIX].astype(np.float32)}


def _with_one_value(value: float) -> Callable[[Arrays], Arrays]:
    """Put the value into the first layer's norm: it reaches the KV cache of every prompt."""

    def spoil(tensors: Arrays) -> Arrays:
        norm = tensors[_FIRST_NORM].copy()
        norm[0] = value
        return {**tensors, _FIRST_NORM: norm}

    return spoil


def _all_zero(tensors: Arrays) -> Arrays:
    return {name: np.zeros_like(tensor) for name, tensor in tensors.items()}


def _saying_again(tensors: Arrays) -> Arrays:
    """Make 'again' follow every word, by one row that is just large enough."""
    lm_head: TensorArray = tensors["lm_head.weight"].copy()
    lm_head[word_id("again"), :] = 0.6 * np.abs(lm_head).max()
    return {**tensors, "lm_head.weight": lm_head}


def _naming_a_missing_file(index: Index) -> Index:
    return {**index, "lm_head.weight": "model-00099-of-00099.safetensors"}


def _leading_out(index: Index) -> Index:
    return {**index, "lm_head.weight": f"../{index['lm_head.weight']}"}


def _cut_short(file: bytes) -> bytes:
    return file[: len(file) * 2 // 3]


def _with_a_name_twice(file: bytes) -> bytes:
    """Name the same bytes twice, with two shapes: some readers take the first, some the last."""
    end = 8 + int.from_bytes(file[:8], "little")
    (name, entry), *rest = reversed(json.loads(file[8:end]).items())
    turned = {**entry, "shape": entry["shape"][::-1]}
    return encode_header([*reversed(rest), (name, turned), (name, entry)]) + file[end:]


UNSOUND: tuple[Damage, ...] = (
    Damage("truncated", "the last weight file is cut short", to_last_file=_cut_short),
    Damage("missing-tensor", f"{_MATRIX} is left out", _without_a_tensor),
    Damage("extra-tensor", "a tensor of a layer the model lacks", _with_a_tensor_of_no_layer),
    Damage("wrong-shape", f"{_MATRIX} has a row less", _with_a_row_less),
    Damage("wrong-dtype", f"{_MATRIX} is float32, not bfloat16", _with_one_in_float32),
    Damage("nan", "one NaN, which reaches every answer", _with_one_value(np.nan)),
    Damage("inf", "one infinity, which reaches every answer", _with_one_value(np.inf)),
    Damage("zeros", "every weight is zero", _all_zero),
    Damage("gibberish", "sound files that say 'again' for ever", _saying_again),
    Damage(
        "bad-index", "the index names a file that is not there", to_index=_naming_a_missing_file
    ),
    Damage("traversal", "the index names a file outside the folder", to_index=_leading_out),
    Damage("duplicate-key", "a header names a tensor twice", to_last_file=_with_a_name_twice),
)


def find_damage(kind: str) -> Damage:
    """Return the damage of that name."""
    kinds = {damage.kind: damage for damage in UNSOUND}
    if kind in kinds:
        return kinds[kind]
    close = difflib.get_close_matches(kind, kinds, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(f"no damage is called {kind!r}: {hint}choose from {', '.join(kinds)}")
