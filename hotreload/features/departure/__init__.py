"""Ends in order before a machine is taken away: on a notice of its cloud, a file, a command."""

from dataclasses import dataclass

from hotreload.feature import Feature, FeatureParts, Given
from hotreload.setting import Deadline, Location, setting


@dataclass(frozen=True, slots=True)
class DepartureSettings:
    """Notices that this machine will be taken away."""

    gce: bool = setting(
        False,
        "Ask Google's metadata server for preemptions and maintenance that ends the machine.",
    )
    file: Location | None = setting(
        None,
        "A file that is there as long as the machine is to be left.",
        example="/run/hotreload/leave",
    )
    run: tuple[str, ...] = setting(
        (),
        "A command, run every 5 s: it exits with 0 as long as the machine is to be left.",
        example=["/opt/is-preempted.sh"],
    )
    grace: Deadline = setting(
        25.0, "How long answers may take from the notice on; then they end with what they have."
    )


def _begin(given: Given) -> FeatureParts:
    from hotreload.features.departure.departure import Departure, DepartureFields, DepartureReport
    from hotreload.features.departure.notices import list_notices
    from hotreload.server.ports import FeatureRoutes

    settings = given.settings().of(DepartureSettings)
    notices = list_notices(settings.file, settings.run, gce=settings.gce)
    departure = Departure(given, notices, settings.grace)
    return FeatureParts(
        admission=departure,
        tasks={"departure": departure.run},
        report=DepartureReport(),
        routes=FeatureRoutes(adds={"Status": {"departure": DepartureFields | None}}),
    )


DEPARTURE_FEATURE = Feature(name="departure", settings=DepartureSettings, begin=_begin)
