"""Compares new weights with the live ones before they answer, and refuses them by limits."""

from typing import TYPE_CHECKING

from hotreload.feature import Feature
from hotreload.features.compare.evidence import BEHAVIOUR, BLANK, words_of_comparison
from hotreload.features.compare.settings import CompareSettings

if TYPE_CHECKING:
    from hotreload.core.judge import Judge
    from hotreload.parts import Apply, FeatureParts, Given
    from hotreload.settings.sections import Settings


def _begin(given: "Given") -> "FeatureParts":
    from hotreload.features.compare.hearing import Hearing
    from hotreload.features.compare.judge import CompareJudge
    from hotreload.features.compare.report import CompareReport
    from hotreload.features.compare.shapes import COMPARE_SHAPES
    from hotreload.parts import FeatureParts, nothing_to_apply

    hearing = Hearing(given.settings().of(CompareSettings))

    def judges() -> "list[Judge]":
        settings = given.settings()
        share = settings.reload.shadow_share
        return [CompareJudge(settings.of(CompareSettings), share, hearing)]

    async def prepare(settings: "Settings") -> "Apply":
        for engine in given.engines():
            await engine.check_questions(settings.of(CompareSettings).questions)
        return nothing_to_apply

    return FeatureParts(
        judges=judges,
        listeners=(hearing,),
        report=CompareReport(hearing, given.attempts.ledger.history),
        routes=COMPARE_SHAPES,
        prepare=prepare,
    )


COMPARE_FEATURE = Feature(
    name="compare",
    settings=CompareSettings,
    blank=BLANK,
    words=words_of_comparison,
    reasons=(BEHAVIOUR,),
    begin=_begin,
)
