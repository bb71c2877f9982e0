"""Finds the tensors that a fingerprint counts, and whether a file alone determines it.

A fingerprint is of the values as an engine serves them. Without a cast these are the file's.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hotreload.checkpoint.file_names import CONFIG
from hotreload.checkpoint.findings import Unfit, quote
from hotreload.checkpoint.fit import Located, Policy, never_loaded, read_config
from hotreload.checkpoint.never_loaded import matches
from hotreload.checkpoint.survey import Survey
from hotreload.types import Served

AUTO = "auto"
_FLOAT32 = "F32"
_SAFETENSORS = {
    "bfloat16": "BF16",
    "float16": "F16",
    "half": "F16",
    "float32": _FLOAT32,
    "float": _FLOAT32,
}


@dataclass(frozen=True, slots=True)
class CountedTensors:
    """The names of the tensors that count; none if that is unknown, and then the reason."""

    names: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()


def find_counted(
    looked: Survey,
    found: Mapping[str, Located],
    served: Served | None,
    policy: Policy,
    compute_in: str,
) -> CountedTensors:
    """Find the tensors that an engine loads, if it serves them without a cast."""
    stated = served.config if served is not None else _config(looked)
    if not stated:
        without = f"without a {CONFIG} nobody knows what an engine makes of the tensors"
        return _unknown(f"{without}: name the model with --against")
    names = frozenset(_find_loaded(found, served, stated, policy))
    dtype = _served_dtype(stated, compute_in)
    cast = sorted(name for name in names if found[name].tensor.dtype != dtype)
    if not cast:
        return CountedTensors(names)
    first = f"{quote(cast[0])} of {found[cast[0]].tensor.dtype}"
    return _unknown(f"an engine casts {len(cast)} tensors to {dtype}, {first} for one")


def _config(looked: Survey) -> Mapping[str, Any] | None:
    try:
        return read_config(looked)
    except Unfit:  # it changed since it was compared: reading it all finds that
        return None


def _unknown(why: str) -> CountedTensors:
    return CountedTensors(unknown=(f"no fingerprint can be told of the files: {why}",))


def _find_loaded(
    found: Mapping[str, Located],
    served: Served | None,
    stated: Mapping[str, Any],
    policy: Policy,
) -> Iterator[str]:
    never = never_loaded(stated)
    needed = served.tensors if served is not None else {}
    for name in found:
        extra = name not in needed and matches(name, policy.extra_tensors)
        if not extra and not matches(name, never):
            yield name


def _served_dtype(stated: Mapping[str, Any], compute_in: str) -> str:
    """Return the dtype that the engine gives to floats; float32 if none is set."""
    named = compute_in if compute_in != AUTO else stated.get("dtype") or stated.get("torch_dtype")
    return _SAFETENSORS.get(str(named), _FLOAT32)
