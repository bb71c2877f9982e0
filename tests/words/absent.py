"""Stands in for what modules of the real engine import at once: that takes seconds.

An engine of words calls none of it.
"""

from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from unittest.mock import MagicMock

PACKAGES = {"flax", "jax", "jaxlib"}


class Absent(MetaPathFinder, Loader):
    """Finds each of their modules, and makes it of what may be named and does nothing."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A module of one of the packages; the others are left to who finds them."""
        is_absent = name.partition(".")[0] in PACKAGES
        return ModuleSpec(name, self, is_package=True) if is_absent else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """What answers to every name."""
        made = MagicMock(name=spec.name)
        made.__path__ = []
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is to be run."""
