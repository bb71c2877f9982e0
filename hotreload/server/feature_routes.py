"""The port for features that have routes of their own, or add fields to other routes' answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter

from hotreload.server.http.keys import Admit
from hotreload.server.ports import Entrance


def make_no_routes(entrance: Entrance[Any], admission: Admit) -> APIRouter:
    """Return an empty router."""
    return APIRouter()


@dataclass(frozen=True, slots=True)
class FeatureRoutes:
    """The routes of one feature, and their part of `GET /openapi.json`."""

    make: Callable[[Entrance[Any], Admit], APIRouter] = make_no_routes
    """Builds the router; routes that change something depend on the check of administrators."""
    paths: frozenset[str] = frozenset()
    """The paths by which their requests are counted."""
    adds: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The types of fields that the feature adds, by the names of the kernel's documents."""
