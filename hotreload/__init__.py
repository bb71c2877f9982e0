"""Keeps a running sglang-jax engine's weights equal to the newest good checkpoint.

A program that holds an engine of its own takes `HotEngine` from here (docs/train.md).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hotreload.engine.answering.probe import Probe
    from hotreload.hot.asynchronous import AsyncHotEngine
    from hotreload.hot.names import bonsai_names, maxtext_names, tunix_names
    from hotreload.hot.staged import AsyncStagedWeights
    from hotreload.hot.synchronous import HotEngine, StagedWeights
    from hotreload.hot.terms import HotTerms

__version__ = "0.1.0"

__all__ = [
    "AsyncHotEngine",
    "AsyncStagedWeights",
    "HotEngine",
    "HotTerms",
    "Probe",
    "StagedWeights",
    "bonsai_names",
    "maxtext_names",
    "tunix_names",
]

_HOMES = {
    "AsyncHotEngine": "hotreload.hot.asynchronous",
    "AsyncStagedWeights": "hotreload.hot.staged",
    "HotEngine": "hotreload.hot.synchronous",
    "HotTerms": "hotreload.hot.terms",
    "Probe": "hotreload.engine.answering.probe",
    "StagedWeights": "hotreload.hot.synchronous",
    "bonsai_names": "hotreload.hot.names",
    "maxtext_names": "hotreload.hot.names",
    "tunix_names": "hotreload.hot.names",
}
"""Imported when they are asked for: a program that asks for the version alone waits for no JAX."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
