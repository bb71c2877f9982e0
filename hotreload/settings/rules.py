"""Decisions of the operator about attempts, in the core's terms."""

from hotreload.core.rules import KeepPrevious, Rules
from hotreload.settings.sections import Settings
from hotreload.types import Shares

NAMING_SECONDS = 5.0
"""Seconds by which an attempt's own time limit is later than that of other ranks, so that the error
names the late rank."""


def stage_seconds(settings: Settings) -> float:
    """Return how long staging may take; on other hosts that includes the fetch and the checks."""
    reload = settings.reload
    if settings.engine.nnodes == 1:
        return reload.stage_timeout
    return reload.fetch_timeout + reload.validate_timeout + reload.stage_timeout


def shares_of(settings: Settings) -> Shares:
    """Return in which part of their turns weights compute that are not the live ones."""
    reload, is_on_one_host = settings.reload, settings.engine.nnodes == 1
    prove_within = reload.prove_within if is_on_one_host else None
    return Shares(reload.shadow_share, reload.fading_share, prove_within)


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
        times_beside_clients=shares_of(settings).times_as_long(reload.probe_timeout + later),
    )
