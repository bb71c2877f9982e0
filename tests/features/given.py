"""What a daemon gives to a feature, without a daemon."""

from collections.abc import Callable
from typing import Any

from hotreload.core.attempt_records import Attempts
from hotreload.core.ledger import Ledger
from hotreload.core.way_in.entrance import Entrance
from hotreload.events import Event
from hotreload.feature import Feature, FeatureParts, Given
from hotreload.features import FEATURES
from hotreload.picture.report import FeatureReport
from hotreload.server_limits import Limits
from hotreload.settings.load import load
from hotreload.types import Generation, Reason


async def _saved(ledger: Ledger) -> None:
    """Save it nowhere."""


async def _leave(reason: Reason, left: Generation) -> None:
    raise AssertionError(f"{left} is to be left: {reason}")


def _publish(event: Event) -> None:
    """Publish to nobody."""


def given(
    settings: Any,
    entrance: Entrance[Any] | None = None,
    publish: Callable[[Event], None] = _publish,
) -> Given:
    """Return what a daemon of these settings gives to a feature; it serves nothing yet."""
    return Given(
        settings=lambda: settings,
        limits=Limits(),
        entrance=entrance or Entrance[Any](publish),
        engines=entrance.engines if entrance else list,
        attempts=Attempts(Ledger(), write=_saved, publish=publish, is_lost=lambda: False),
        leave=_leave,
    )


def parts_of(feature: Feature) -> FeatureParts:
    """Begin a feature beside a daemon that serves nothing and has the default settings."""
    return feature.begin(given(load(None, [], {}, FEATURES).settings))


def report_of(feature: Feature) -> FeatureReport:
    """Its report; one that tells nothing where it has none."""
    return parts_of(feature).report or FeatureReport()


def fields_of(feature: Feature) -> set[str]:
    """The fields that it adds to documents."""
    report = report_of(feature)
    facts = feature.blank.facts if feature.blank else {}
    return {*facts, *report.fields(), *report.gate_fields(None)}


def metrics_of(feature: Feature) -> set[str]:
    """The names of its metrics."""
    return {family.name for family in report_of(feature).families()}
