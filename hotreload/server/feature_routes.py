"""The door for features that have routes of their own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter

from hotreload.server.admin import Admit
from hotreload.server.operation import Operations
from hotreload.server.ports import Gate
from hotreload.server.schema_parts import Schema


@dataclass(frozen=True, slots=True)
class Routes:
    """The routes of one feature, and what `GET /openapi.json` says of each."""

    make: Callable[[Gate[Any], Admit], APIRouter]
    """Make them; those that change something depend on what admits administrators."""
    operations: Operations
    shapes: Mapping[str, Schema]
    """Schemas of answers, by the names that the operations have for them."""

    @property
    def paths(self) -> frozenset[str]:
        """The paths, which requests to them are counted by."""
        return frozenset(path for _, path in self.operations)
