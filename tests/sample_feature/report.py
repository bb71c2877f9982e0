"""Shows the frozen fields: in the status, by a metric, by a route."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypedDict

from fastapi import APIRouter

from hotreload.events import AttemptFinished, Event
from hotreload.json_fields import Fields
from hotreload.picture.report import Family, FeatureReport, gauge
from hotreload.picture.rows import row
from hotreload.server.api_schema.operation import Operation
from hotreload.server.http.problems import Json
from hotreload.server.ports import FeatureRoutes
from tests.sample_feature import REASON


class FrozenFields(TypedDict):
    fields: list[str]
    refused: int


class FrozenReport(FeatureReport):
    """Tells of them in the status and its rows, by a metric, and by a route."""

    def __init__(self, frozen: Callable[[], Sequence[str]]) -> None:
        self._frozen, self._refused = frozen, 0

    def observe(self, event: Event) -> None:
        """Count refusals."""
        if isinstance(event, AttemptFinished) and (reason := event.attempt.reason) is not None:
            self._refused += reason.code == REASON

    def fields(self) -> Fields:
        """Return the field of `/status`."""
        return {"frozen": FrozenFields(fields=[*self._frozen()], refused=self._refused)}

    def rows(self, status: Fields) -> Iterator[Fields]:
        """Return its row, made of the field alone."""
        if names := status["frozen"]["fields"]:
            yield row("frozen", ", ".join(names))

    def families(self) -> Iterator[Family]:
        """Return its metric."""
        yield gauge("frozen_fields", "Fields.", len(self._frozen()))


def frozen_routes(report: FrozenReport) -> FeatureRoutes:
    router = APIRouter()

    @router.get("/frozen")
    @Operation("Frozen fields.", FrozenFields)
    async def frozen() -> Json:
        return Json(report.fields()["frozen"])

    return FeatureRoutes(lambda gate, admission: router, frozenset({"/frozen"}))
