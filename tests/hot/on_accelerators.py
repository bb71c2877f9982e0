"""Has an engine on a CPU take that for an accelerator."""

from typing import Any

import pytest

from hotreload.checkpoint import in_memory
from hotreload.engine.weights import from_arrays


def take_for_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have arrays of JAX go to the engine from device to device."""
    is_of_jax = in_memory._is_of_jax
    monkeypatch.setattr(in_memory, "is_on_device", is_of_jax)
    monkeypatch.setattr(from_arrays, "is_on_host", lambda leaf: False)


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where an array of JAX is asked for its values."""

    def refuse(array: Any) -> Any:
        raise AssertionError("an array was asked for its values")

    monkeypatch.setattr(in_memory, "_on_host", refuse)
