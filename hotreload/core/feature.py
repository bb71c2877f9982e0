"""A feature: what is handed to the daemon beside the kernel."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Feature:
    """A capability that uses the kernel's doors."""

    name: str
    """Also the name of its table in the settings."""
    settings: type[Any] | None = None
    """The table's class, a plain frozen dataclass; None where it has no settings."""
