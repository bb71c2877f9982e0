"""Maps a program's own names of its tensors, and their axes, to those of the Hugging Face Hub.

Lookups for models of bonsai, Tunix and MaxText are ready made.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from hotreload.checkpoint.arrangement import OtherAxes, arrange
from hotreload.errors import BadRequest, show_value

GivenWeights = str | Path | Mapping[str, Any]
"""New weights: a checkpoint's folder, or arrays of numpy or JAX by their Hugging Face names."""
Factor = float | Callable[[tuple[int, ...]], float]
"""A number that an array is multiplied by, or a function of the array's shape that returns it."""
Name = str | tuple[str, str] | tuple[str, str, Factor]
"""Hugging Face's name, and if needed the arrangement of the axes (`d n h -> (n h) d`)."""
Names = Mapping[str, Name] | Callable[[str], Name | None]
"""A table from a program's names to Hugging Face's, or a lookup, which returns None if unknown."""
UNKNOWN_SHOWN = 10


class Renamed(dict[str, Any]):
    """Arrays by their Hugging Face names, and in `called` the program's name of each."""

    def __init__(self, tensors: Mapping[str, Any], called: Mapping[str, str]) -> None:
        super().__init__(tensors)
        self.called = called


def rename(given: GivenWeights, names: Names | None) -> GivenWeights:
    """Return the arrays by their Hugging Face names; BadRequest lists the unknown names.

    The arrays may lie in a tree of mappings and lists, as in an `nnx.State`: the keys, joined by
    dots, are the name.
    """
    if names is None:
        return given
    if not isinstance(given, Mapping):
        raise BadRequest("names are for a mapping of arrays: what a folder holds has its names")
    if not (isinstance(names, Mapping) or callable(names)):
        raise BadRequest(f"names must be a table or a callable, not {show_value(names)}")
    arrays = {str(name): each for name, each in _flatten(given)}
    found = {name: _look_up(names, name) for name in arrays}
    known = {name: each for name, each in found.items() if _is_name(each)}
    if unknown := [name for name in found if name not in known]:
        raise _unfit("names does not know", unknown)
    called: dict[str, str] = {}
    tensors: dict[str, Any] = {}
    for name, array in arrays.items():
        for other, tensor in _tensors(name, array, known[name]):
            if other in called:
                raise _unfit(f"names calls {show_value(called[other])} the same as", [name])
            called[other], tensors[other] = name, tensor
    return Renamed(tensors, called)


def _flatten(
    tree: Mapping[Any, Any] | Sequence[Any], before: str = ""
) -> Iterator[tuple[Any, Any]]:
    """Yield each array of a tree by its name; for a variable of flax its value."""
    for key, each in tree.items() if isinstance(tree, Mapping) else enumerate(tree):
        name = f"{before}.{key}" if before else key
        if isinstance(each, Mapping | list | tuple):
            yield from _flatten(each, str(name))
        else:
            value = getattr(each, "get_raw_value", None)
            yield name, each if value is None else value()


def _is_name(found: object) -> TypeGuard[Name]:
    if not isinstance(found, tuple):
        return isinstance(found, str)
    is_two = len(found) in (2, 3) and all(isinstance(each, str) for each in found[:2])
    return is_two and all(callable(each) or _is_factor(each) for each in found[2:])


def _is_factor(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value != 0


def _tensors(name: str, array: Any, found: Name) -> Iterator[tuple[str, Any]]:
    """Yield the tensor that an array is, or the tensors that it stacks, by name."""
    if isinstance(found, str):
        yield found, array
        return
    other, axes, *factors = found
    shape = tuple(getattr(array, "shape", ()))
    factor = math.prod(each(shape) if callable(each) else each for each in factors)
    try:
        yield from arrange(array, axes, other, factor)
    except OtherAxes:
        words = f"is {shape}, and is to be arranged by '{axes}'"
        raise BadRequest(f"{show_value(name)} {words}") from None


def _look_up(names: Names, name: Any) -> object:
    """Return the Hugging Face name that `names` has for this name, or None."""
    try:
        return names[name] if isinstance(names, Mapping) else names(name)
    except LookupError:
        return None


def _unfit(words: str, names: list[str]) -> BadRequest:
    named = [show_value(name) for name in names[:UNKNOWN_SHOWN]]
    more = f" and {len(names) - UNKNOWN_SHOWN} more" if len(names) > UNKNOWN_SHOWN else ""
    return BadRequest(f"{words} {', '.join(named)}{more}", findings=named)


# --- models in flax: bonsai's and Tunix's ----------------------------------

_Row = tuple[str, str, str | None]
"""A pattern of a program's names, Hugging Face's name, and an arrangement of the axes or None."""
_Table = tuple[Sequence[_Row], Sequence[_Row]]
"""The rows of a whole model, and those of each of its layers."""

_FLAX_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_OF_HEADS = "i o -> o i | d n h -> (n h) d"
"""The axes of an `nnx.Linear`'s kernel, or of an `nnx.Einsum`'s, which has an axis of heads."""

_BONSAI: _Table = (
    (
        (r"embedder\.embedding", "model.embed_tokens.weight", None),
        (r"final_norm\.scale", "model.norm.weight", None),
        (r"lm_head\.kernel", "lm_head.weight", "d v -> v d"),
    ),
    (
        (r"(?:self_)?attn\.([qkv])_proj\.kernel", r"self_attn.\1_proj.weight", _OF_HEADS),
        (
            r"(?:self_)?attn\.o_proj\.kernel",
            "self_attn.o_proj.weight",
            "i o -> o i | n h d -> d (n h)",
        ),
        (r"(?:self_)?attn\.([qkv])_proj\.bias", r"self_attn.\1_proj.bias", None),
        (r"(?:self_)?attn\.([qk])_norm\.scale", r"self_attn.\1_norm.weight", None),
        (r"mlp\.(gate|up|down)_proj\.kernel", r"mlp.\1_proj.weight", "i o -> o i"),
        (r"(input|post_attention)_layernorm\.scale", r"\1_layernorm.weight", None),
    ),
)

_TUNIX: _Table = (
    (
        (r"embedder\.input_embedding", "model.embed_tokens.weight", None),
        (r"final_norm\.w", "model.norm.weight", None),
        (r"lm_head\.w", "lm_head.weight", "d v -> v d"),
    ),
    (
        (r"attn\.([qkv])_proj\.w", r"self_attn.\1_proj.weight", "d n h -> (n h) d"),
        (r"attn\.o_proj\.w", "self_attn.o_proj.weight", "n h d -> d (n h)"),
        (r"attn\.([qkv])_bias", r"self_attn.\1_proj.bias", None),
        (r"attn\.([qk])_norm\.w", r"self_attn.\1_norm.weight", None),
        (r"mlp\.(gate|up|down)_proj\.kernel", r"mlp.\1_proj.weight", "i o -> o i"),
        (r"(input|post_attention)_layernorm\.w", r"\1_layernorm.weight", None),
    ),
)


def bonsai_names(name: str) -> Name | None:
    """Return the Hugging Face name for a tensor of bonsai's qwen3, qwen2 or llama 3.

    If its axes differ, their arrangement is returned, too. None for an unknown name.
    """
    return _look_up_in_flax(_BONSAI, name)


def tunix_names(name: str) -> Name | None:
    """Return the Hugging Face name for a tensor of Tunix's qwen3, qwen2 or llama 3.

    If its axes differ, their arrangement is returned, too. None for an unknown name.
    """
    return _look_up_in_flax(_TUNIX, name)


def _look_up_in_flax(table: _Table, name: str) -> Name | None:
    """Return the name, with its arrangement if any, by the first pattern that matches all of it."""
    rows, before = table[0], ""
    if in_layer := _FLAX_LAYER.fullmatch(name):
        rows, before, name = table[1], f"model.layers.{in_layer[1]}.", in_layer[2]
    for own, theirs, axes in rows:
        if found := re.fullmatch(own, name):
            full = before + found.expand(theirs)
            return full if axes is None else (full, axes)
    return None


# --- MaxText's models ------------------------------------------------------------

_Turned = tuple[str, str, str]
"""Hugging Face's name, the axes of MaxText's array, and the axes of Hugging Face's tensor."""
_ROOT = re.compile(r"(?:base\.|params\.)*")
_MAXTEXT_LAYER = re.compile(r"decoder\.layers(?:_(\d+))?\.(.+)")
_MAXTEXT: Mapping[str, _Turned] = {
    "token_embedder.embedding": ("model.embed_tokens.weight", "v d", "v d"),
    "decoder.decoder_norm.scale": ("model.norm.weight", "d", "d"),
    "decoder.logits_dense.kernel": ("lm_head.weight", "d v", "v d"),
}
_LAYER_OF_MAXTEXT: Mapping[str, _Turned] = {
    "pre_self_attention_layer_norm.scale": ("input_layernorm.weight", "d", "d"),
    "post_self_attention_layer_norm.scale": ("post_attention_layernorm.weight", "d", "d"),
    "self_attention.query.kernel": ("self_attn.q_proj.weight", "d n h", "(n h) d"),
    "self_attention.key.kernel": ("self_attn.k_proj.weight", "d n h", "(n h) d"),
    "self_attention.value.kernel": ("self_attn.v_proj.weight", "d n h", "(n h) d"),
    "self_attention.out.kernel": ("self_attn.o_proj.weight", "n h d", "d (n h)"),
    "self_attention.query.bias": ("self_attn.q_proj.bias", "n h", "(n h)"),
    "self_attention.key.bias": ("self_attn.k_proj.bias", "n h", "(n h)"),
    "self_attention.value.bias": ("self_attn.v_proj.bias", "n h", "(n h)"),
    "self_attention.query_norm.scale": ("self_attn.q_norm.weight", "h", "h"),
    "self_attention.key_norm.scale": ("self_attn.k_norm.weight", "h", "h"),
    "mlp.wi_0.kernel": ("mlp.gate_proj.weight", "i o", "o i"),
    "mlp.wi_1.kernel": ("mlp.up_proj.weight", "i o", "o i"),
    "mlp.wo.kernel": ("mlp.down_proj.weight", "i o", "o i"),
}
_ROTATED = ("self_attention.query.kernel", "self_attention.key.kernel")
_PAIRED = ("d n (h 2)", "(n 2 h) d")
"""Axes of llama 3.1's queries and keys: the two numbers that rotate together are neighbours."""
_FAMILIES = re.compile(r"llama[23]|llama3\.1|qwen2|qwen2\.5|qwen3")


def maxtext_names(model_name: str) -> Callable[[str], Name | None]:
    """Return the lookup of Hugging Face names for a dense model of MaxText's `model_name`.

    Layers may be scanned (one array stacks the tensors of all layers) or lie one by one.
    """
    family = re.sub(r"-\d.*", "", model_name) if isinstance(model_name, str) else ""
    if not _FAMILIES.fullmatch(family):
        raise BadRequest(
            f"the arrays of a MaxText model called {show_value(model_name)} are not known: give "
            "'llama3.1' where rope_type is that or the model is one, 'llama3', 'llama2', 'qwen2', "
            "'qwen2.5' or 'qwen3' for what is built like these, or a table of your own"
        )
    return partial(_look_up_in_maxtext, family)


def _look_up_in_maxtext(family: str, name: str) -> Name | None:
    own = _ROOT.sub("", name, count=1)
    if own in _MAXTEXT:
        theirs, before, after = _MAXTEXT[own]
        return theirs, f"{before} -> {after}"
    found = _MAXTEXT_LAYER.fullmatch(own)
    if found is None or found[2] not in _LAYER_OF_MAXTEXT:
        return None
    layer, part = found.groups()
    theirs, before, after = _LAYER_OF_MAXTEXT[part]
    if family == "llama3.1" and part in _ROTATED:
        before, after = _PAIRED
    if layer is None:
        first, *others = before.split(" ", 1)
        layer, before = "{layer}", " ".join((first, "layer", *others))
    full, axes = f"model.layers.{layer}.{theirs}", f"{before} -> {after}"
    if family.startswith("llama") and part == "self_attention.query.kernel":
        return full, axes, _root_of_a_head
    return full, axes


def _root_of_a_head(shape: tuple[int, ...]) -> float:
    """Return attention's divisor, which the queries of MaxText's llama have folded in."""
    return math.sqrt(shape[-1])
