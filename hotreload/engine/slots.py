"""Finds the list of leaves an engine serves: one small class per generation of sglang-jax.

`find_slot` chooses one by looking at the objects. A slot knows nothing of names or checkpoints.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from hotreload.engine.versions import installed_version, list_supported
from hotreload.errors import ConfigError


class Slot(Protocol):
    """The list of leaves that each step hands to the compiled model."""

    def read(self) -> list[Any]:
        """The live list itself; never change it in place."""
        ...

    def rebind(self, leaves: list[Any]) -> None:
        """Let the next step use this list.

        A list changed in place would go unnoticed: main's AOT dispatcher compares lists by
        identity and would keep the old buffers.
        """
        ...


class ClosureSlot:
    """0.0.2: a cell of the closure `model_runner.jitted_run_model`."""

    def __init__(self, model_runner: Any) -> None:
        function = model_runner.jitted_run_model
        at = function.__code__.co_freevars.index("model_state_leaves")
        self._cell = function.__closure__[at]

    @classmethod
    def fits(cls, model_runner: Any) -> bool:
        """Say whether this engine keeps its leaves here."""
        code = getattr(getattr(model_runner, "jitted_run_model", None), "__code__", None)
        return "model_state_leaves" in getattr(code, "co_freevars", ())

    def read(self) -> list[Any]:
        """The list in the cell."""
        leaves: list[Any] = self._cell.cell_contents
        return leaves

    def rebind(self, leaves: list[Any]) -> None:
        """Put another list into the cell."""
        self._cell.cell_contents = leaves


class AttributeSlot:
    """main: the attribute `model_runner.model_state_leaves`, read at each step."""

    def __init__(self, model_runner: Any) -> None:
        self._model_runner = model_runner

    @classmethod
    def fits(cls, model_runner: Any) -> bool:
        """Say whether this engine keeps its leaves here."""
        return isinstance(getattr(model_runner, "model_state_leaves", None), list)

    def read(self) -> list[Any]:
        """The list in the attribute."""
        leaves: list[Any] = self._model_runner.model_state_leaves
        return leaves

    def rebind(self, leaves: list[Any]) -> None:
        """Put another list into the attribute."""
        self._model_runner.model_state_leaves = leaves


SLOTS: Sequence[type[ClosureSlot] | type[AttributeSlot]] = (AttributeSlot, ClosureSlot)


def find_slot(model_runner: Any) -> Slot:
    """The slot of this engine; a ConfigError says which versions have one."""
    for slot in SLOTS:
        if slot.fits(model_runner):
            return slot(model_runner)
    raise ConfigError(
        f"sglang-jax {installed_version('sglang-jax')} keeps its weights where hotreload cannot "
        f"find them: install a supported version, {list_supported()}, or add a class to "
        "hotreload/engine/slots.py"
    )
