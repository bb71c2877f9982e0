"""Judges what went live by the answers that clients get, and leaves bad weights by itself."""

from functools import partial

from hotreload.feature import Feature, FeatureParts, Given
from hotreload.features.bake.evidence import BAKE, BLANK, BakeFields, words_of_bake
from hotreload.features.bake.rule import BakeSettings


def _begin(given: Given) -> FeatureParts:
    from hotreload.features.bake.bakes import Bakes
    from hotreload.features.bake.report import BakeReport
    from hotreload.server.ports import FeatureRoutes

    bake = {"bake": BakeFields | None}
    baking = Bakes(given.attempts, given.settings().of(BakeSettings))

    return FeatureParts(
        listeners=(baking.conducts,),
        tasks={"bake": partial(baking.run, given.leave)},
        observe=baking.observe,
        report=BakeReport(lambda: baking.now, lambda: baking.conviction),
        routes=FeatureRoutes(adds={"Attempt": bake, "Verdict": bake}),
        apply=lambda settings: baking.go_by(settings.of(BakeSettings)),
    )


BAKE_FEATURE = Feature(
    name=BAKE,
    settings=BakeSettings,
    blank=BLANK,
    words=words_of_bake,
    reasons={
        BAKE: (
            "clients' answers were clearly worse than before ([bake](judge.md#bake)), or too "
            'few with `inconclusive = "rollback"`',
            "read which sign; look at the training run. If its answers are good, force it",
        )
    },
    begin=_begin,
)
