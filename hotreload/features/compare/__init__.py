"""Compares new weights with the live ones, and refuses them by limits before they answer."""

from hotreload.feature import Feature, FeatureParts, Given
from hotreload.features.compare.evidence import BEHAVIOUR, BLANK, words_of_comparison
from hotreload.features.compare.settings import CompareSettings


def _begin(given: Given) -> FeatureParts:
    from hotreload.features.compare.comparison import KnownAnswers
    from hotreload.features.compare.evidence import Behaviour
    from hotreload.features.compare.judge import AllComparisons, CompareJudge, LeavesNoNumbers
    from hotreload.features.compare.replay import HearingNow, RequestRecorder
    from hotreload.features.compare.report import CompareReport
    from hotreload.server.ports import FeatureRoutes

    recorder = RequestRecorder(given.settings().of(CompareSettings))
    way_out = LeavesNoNumbers(given.leave)
    shared = AllComparisons(recorder, KnownAnswers(), given.attempts.note_late, way_out.take)

    return FeatureParts(
        judges=lambda: [CompareJudge(given.settings().of(CompareSettings), shared)],
        listeners=(recorder,),
        tasks={"leave what makes no numbers": way_out.run},
        report=CompareReport(lambda: recorder.now, given.attempts.ledger.attempts),
        routes=FeatureRoutes(
            adds={
                "Attempt": {"behaviour": Behaviour | None, "not_compared": str | None},
                "Status": {"heard": HearingNow | None},
            }
        ),
    )


COMPARE_FEATURE = Feature(
    name="compare",
    settings=CompareSettings,
    blank=BLANK,
    words=words_of_comparison,
    reasons={
        BEHAVIOUR: (
            "its answers differ from the live weights' beyond "
            "[`[compare.limits]`](judge.md#compare)",
            "read which limit; look at the training run or the conversion. If it is as it "
            "should be, change the limit (SIGHUP) and force it",
        )
    },
    begin=_begin,
)
