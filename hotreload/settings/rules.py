"""Decisions of the operator about attempts, in the core's terms."""

from hotreload.behaviour.asked import Question
from hotreload.core.rules import KeepPrevious, Rules
from hotreload.features.bake.rules import BakeRules
from hotreload.features.compare.rules import BehaviourLimits, CompareRules, HearingRules
from hotreload.settings.sections import Settings
from hotreload.types import Shares

NAMING_SECONDS = 5.0
"""So much later than other ranks an attempt itself is out of time: it is to name who was late."""


def stage_seconds(settings: Settings) -> float:
    """Return how long staging may take; on other hosts that includes the fetch and the checks."""
    reload = settings.reload
    if settings.engine.nnodes == 1:
        return reload.stage_timeout
    return reload.fetch_timeout + reload.validate_timeout + reload.stage_timeout


def shares_of(settings: Settings) -> Shares:
    """Return in which part of their turns weights compute that are not the live ones."""
    return Shares(settings.reload.shadow_share, settings.reload.fading_share)


def corpus_of(settings: Settings) -> tuple[Question, ...]:
    """Return the operator's own questions."""
    corpus = settings.behaviour.corpus
    if corpus is None:
        return ()
    assert corpus.questions, f"{corpus} was not read"
    return corpus.questions


def rules_of(settings: Settings) -> Rules:
    """Return the rules that these settings make for each attempt."""
    reload = settings.reload
    later = NAMING_SECONDS if settings.engine.nnodes > 1 else 0.0
    return Rules(
        fetch_timeout=reload.fetch_timeout,
        validate_timeout=reload.validate_timeout,
        stage_timeout=stage_seconds(settings) + later,
        drain_timeout=reload.drain_timeout,
        abort_on_drain_timeout=reload.on_drain_timeout != "postpone",
        sets=reload.sets,
        together=reload.rollout == "together",
        finish_timeout=reload.finish_timeout or settings.server.limits.request_seconds,
        longest_drain=settings.server.limits.request_seconds,
        probe_timeout=reload.probe_timeout + later,
        keep_previous=KeepPrevious(reload.keep_previous),
        shadow_share=reload.shadow_share,
    )


def compare_rules_of(settings: Settings) -> CompareRules:
    """Return how new weights are compared with the live ones."""
    behaviour = settings.behaviour
    return CompareRules(
        within=behaviour.time if behaviour.report else 0.0,
        shadow_share=settings.reload.shadow_share,
        limits=BehaviourLimits(**behaviour.limits.model_dump()),
        corpus=corpus_of(settings),
        is_wanted_whole=bool(behaviour.command),
    )


def hearing_rules_of(settings: Settings) -> HearingRules:
    """Return which requests of clients are heard: none where nothing is compared."""
    behaviour = settings.behaviour
    if not behaviour.report:
        return HearingRules()
    return HearingRules(mirror=behaviour.mirror, replay=behaviour.replay)


def bake_rules_of(settings: Settings) -> BakeRules:
    """Return the rules by which clients' answers judge what went live."""
    reload = settings.reload
    return BakeRules(
        seconds=reload.bake,
        longest=max(reload.bake_max, reload.bake),
        inconclusive=reload.bake_inconclusive,
        allowed_increase=reload.allowed_increase,
    )
