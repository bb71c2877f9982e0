"""Which settings can change while the daemon runs; every other one waits for a restart."""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from hotreload.settings.sections import Settings

NEED_NO_RESTART = frozenset(
    {
        "behaviour.command_timeout",
        "behaviour.corpus",
        "behaviour.limits.max_heard_perplexity_ratio",
        "behaviour.limits.max_kl",
        "behaviour.limits.max_kl_over_noise",
        "behaviour.limits.max_length_ratio",
        "behaviour.limits.max_perplexity_ratio",
        "behaviour.limits.min_accuracy",
        "behaviour.limits.min_agreement",
        "behaviour.limits.min_change",
        "behaviour.limits.min_heard_same_top",
        "behaviour.time",
        "checks.dtype_change",
        "checks.extra_tensors",
        "checks.max_drift",
        "checks.nonfinite",
        "log.format",
        "log.level",
        "probe",
        "reload.allowed_increase",
        "reload.bake",
        "reload.bake_inconclusive",
        "reload.bake_max",
        "reload.drain_timeout",
        "reload.fetch_timeout",
        "reload.finish_timeout",
        "reload.max_held",
        "reload.min_interval",
        "reload.probe_timeout",
        "reload.sessions",
        "reload.sets",
        "reload.stage_timeout",
        "reload.validate_timeout",
        "server.limits.batch",
        "server.limits.bodies_bytes",
        "server.limits.body_bytes",
        "server.limits.concurrent",
        "server.limits.generation_seconds",
        "server.limits.request_seconds",
        "server.pause_limit",
        "server.unknown_fields",
    }
)
"""Settings that need no restart. A new setting waits for one until it is listed here."""

ALIKE = frozenset(
    {
        "checks.dtype_change",
        "checks.extra_tensors",
        "checks.max_drift",
        "checks.nonfinite",
        "probe",
    }
)
"""Settings by which all hosts of one engine judge checkpoints: there they need a restart of all."""


@dataclass(frozen=True, slots=True)
class Reread:
    """The result of reading the settings again."""

    settings: Settings
    """The settings from now on: those that run, with what can change changed."""
    changed: tuple[str, ...]
    waiting: tuple[str, ...]
    """Settings that were changed in the file too, and need a restart."""


def reread(running: Settings, wished: Settings) -> Reread:
    """Compare the settings that run with those that are wished now."""
    live = NEED_NO_RESTART if running.engine.nnodes == 1 else NEED_NO_RESTART - ALIKE
    names = [where for where, value in _flat(running) if value != _at(wished, where)]
    return Reread(
        _merged(running, wished, live),
        tuple(_spelled(where) for where in names if where in live),
        tuple(_spelled(where) for where in names if where not in live),
    )


def _flat(table: BaseModel, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table:
        if isinstance(value, BaseModel):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _at(settings: BaseModel, where: str) -> Any:
    value: Any = settings
    for name in where.split("."):
        value = getattr(value, name)
    return value


def _merged[T: BaseModel](running: T, wished: T, live: Set[str], above: str = "") -> T:
    update: dict[str, Any] = {}
    for name, value in running:
        other = getattr(wished, name)
        if isinstance(value, BaseModel):
            update[name] = _merged(value, other, live, f"{above}{name}.")
        elif f"{above}{name}" in live:
            update[name] = other
    return running.model_copy(update=update)


def _spelled(where: str) -> str:
    """Name a setting as the file does."""
    section, _, key = where.rpartition(".")
    return f"[{section}] {key}" if section else f"[[{key}]]"
