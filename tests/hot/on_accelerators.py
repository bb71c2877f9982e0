"""Has an engine on a CPU take that for an accelerator, and sees that nothing is read twice."""

from typing import Any

import numpy as np
import pytest

from hotreload.checkpoint import in_memory
from hotreload.checkpoint.arrangement import plain
from hotreload.engine.weights.leaf import from_arrays


def take_for_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have arrays of JAX go to the engine from device to device."""
    is_of_jax = in_memory._is_of_jax
    monkeypatch.setattr(in_memory, "is_on_device", is_of_jax)
    monkeypatch.setattr(in_memory, "_is_on_host", lambda array: False)
    monkeypatch.setattr(from_arrays, "is_on_host", lambda leaf: False)


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where an array of JAX is asked for its values."""

    def refuse(array: Any) -> Any:
        raise AssertionError("an array was asked for its values")

    monkeypatch.setattr(in_memory, "_on_host", refuse)


def forbid_hashing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where an array of JAX is read as a file is: for the checks, or for its digest."""
    read = in_memory.OpenedMemory._tensor

    def refuse(opened: in_memory.OpenedMemory, at: int) -> Any:
        _, array = opened._memory.array(at)
        assert isinstance(plain(array), np.ndarray), "an array was read as a file is"
        return read(opened, at)

    monkeypatch.setattr(in_memory.OpenedMemory, "_tensor", refuse)
