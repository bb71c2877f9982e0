"""An example of a feature: no checkpoint may change these fields of the served config.json.

CONTRIBUTING.md walks through it. No list names it: tests hand it to a daemon.
"""

from dataclasses import dataclass

from hotreload.attempts import Evidence
from hotreload.feature import Feature, FeatureParts, Given
from hotreload.setting import setting

REASON = "frozen_field"
REASONS = {REASON: ("it changes a frozen field of config.json", "restart with it as the model")}
BLANK = Evidence("frozen", facts={"frozen_changed": None})


@dataclass(frozen=True, slots=True)
class FrozenSettings:
    """Fields of config.json that stay as they are served."""

    fields: tuple[str, ...] = setting((), "Their names.", live=True)


def _begin(given: Given) -> FeatureParts:
    from tests.sample_feature.judge import FrozenJudge
    from tests.sample_feature.report import FrozenReport, frozen_routes

    def judges() -> list[FrozenJudge]:
        fields = given.settings().of(FrozenSettings).fields
        return [FrozenJudge(fields, given.settings().engine.model)] if fields else []

    report = FrozenReport(lambda: given.settings().of(FrozenSettings).fields)
    return FeatureParts(judges=judges, report=report, routes=frozen_routes(report))


FROZEN_FEATURE = Feature(
    name="frozen", settings=FrozenSettings, blank=BLANK, reasons=REASONS, begin=_begin
)
