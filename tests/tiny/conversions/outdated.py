"""Wrong conversions that take sound weights of another step, wholly or in part."""

from collections.abc import Callable

import numpy as np

from hotreload.tiny.weights import LAYERS, Arrays
from tests.tiny.conversions.conversion import Conversion, Past

_LAST = f"model.layers.{LAYERS - 1}."


def _base(tensors: Arrays, past: Past) -> Arrays:
    return past.base


def _early(tensors: Arrays, past: Past) -> Arrays:
    return past.early


def _delta_times(factor: float) -> Callable[[Arrays, Past], Arrays]:
    """Apply what tuning changed so many times."""

    def spoil(tensors: Arrays, past: Past) -> Arrays:
        found = {}
        for name, each in tensors.items():
            base = past.base[name].astype(np.float32)
            found[name] = (base + factor * (each.astype(np.float32) - base)).astype(each.dtype)
        return found

    return spoil


def _partly_base(*parts: str) -> Callable[[Arrays, Past], Arrays]:
    """Leave the tensors whose names hold one of these as they were before tuning."""

    def spoil(tensors: Arrays, past: Past) -> Arrays:
        return {n: past.base[n] if any(p in n for p in parts) else t for n, t in tensors.items()}

    return spoil


def _first_half_early(tensors: Arrays, past: Past) -> Arrays:
    names = list(tensors)
    return {**tensors, **{name: past.early[name] for name in names[: len(names) // 2]}}


OUTDATED: tuple[Conversion, ...] = (
    Conversion("base-for-tuned", "the weights before tuning", from_past=_base),
    Conversion("another-step", "the weights of a step long ago", from_past=_early),
    Conversion("mixed-steps", "the first half from a step long ago", from_past=_first_half_early),
    Conversion("delta-twice", "what tuning changed, applied twice", from_past=_delta_times(2)),
    Conversion("delta-reversed", "what tuning changed, taken away", from_past=_delta_times(-1)),
    Conversion("delta-halved", "half of what tuning changed", from_past=_delta_times(0.5)),
    Conversion("stale-layer", "the last layer from before tuning", from_past=_partly_base(_LAST)),
    Conversion(
        "stale-embedding",
        "the embedding from before tuning, not tied again",
        from_past=_partly_base("embed_tokens"),
    ),
    Conversion("stale-head", "the head from before tuning", from_past=_partly_base("lm_head")),
)
