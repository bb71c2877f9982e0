"""Ends in order before a machine is taken away: on a notice of its cloud, a file, a command."""

from typing import TYPE_CHECKING

from hotreload.feature import Feature
from hotreload.features.departure.settings import DepartureSettings

if TYPE_CHECKING:
    from hotreload.parts import FeatureParts, Given


def _begin(given: "Given") -> "FeatureParts":
    from hotreload.features.departure.departure import Departure
    from hotreload.features.departure.notices import list_notices
    from hotreload.features.departure.report import DepartureFields, DepartureReport
    from hotreload.parts import FeatureParts
    from hotreload.server.ports import FeatureRoutes

    settings = given.settings().of(DepartureSettings)
    departure = Departure(
        given.attempts,
        given.entrance,
        engines=given.engines,
        notices=list_notices(settings),
        within=settings.grace,
    )
    return FeatureParts(
        admission=departure,
        tasks={"departure": departure.run},
        report=DepartureReport(),
        routes=FeatureRoutes(adds={"Status": {"departure": DepartureFields | None}}),
    )


DEPARTURE_FEATURE = Feature(name="departure", settings=DepartureSettings, begin=_begin)
