"""The door for features that have routes of their own, or add to the answers of others."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter

from hotreload.server.admin import Admit
from hotreload.server.api_schema.operation import Operations
from hotreload.server.api_schema.schema_parts import Schema
from hotreload.server.ports import Gate


def make_no_routes(gate: Gate[Any], admission: Admit) -> APIRouter:
    """Make none."""
    return APIRouter()


@dataclass(frozen=True, slots=True)
class FeatureRoutes:
    """The routes of one feature, and what `GET /openapi.json` says of it."""

    make: Callable[[Gate[Any], Admit], APIRouter] = make_no_routes
    """Make them; those that change something depend on what admits administrators."""
    operations: Operations = field(default_factory=dict)
    shapes: Mapping[str, Schema] = field(default_factory=dict)
    """Schemas of answers, by the names that the operations have for them."""
    adds: Mapping[str, Mapping[str, Schema]] = field(default_factory=dict)
    """The fields that it adds to answers of the kernel, by the names of these."""

    @property
    def paths(self) -> frozenset[str]:
        """The paths, which requests to them are counted by."""
        return frozenset(path for _, path in self.operations)


def add_to_attempts(**fields: Schema) -> Mapping[str, Mapping[str, Schema]]:
    """Add these fields to every attempt."""
    return {"Attempt": fields, "PastAttempt": fields}
