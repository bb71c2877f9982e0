"""Which settings can change while the daemon runs; every other one waits for a restart."""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

from hotreload.settings.sections import Settings
from hotreload.settings.tables import is_table, settings_in, values_of, with_values

NEED_NO_RESTART = frozenset(
    {
        "checks.dtype_change",
        "checks.extra_tensors",
        "checks.max_drift",
        "checks.nonfinite",
        "log.format",
        "log.level",
        "probe",
        "reload.drain_timeout",
        "reload.fetch_timeout",
        "reload.finish_timeout",
        "reload.max_held",
        "reload.min_interval",
        "reload.probe_timeout",
        "reload.sets",
        "reload.stage_timeout",
        "reload.validate_timeout",
        "server.limits.batch",
        "server.limits.bodies_bytes",
        "server.limits.body_bytes",
        "server.limits.concurrent",
        "server.limits.generation_seconds",
        "server.limits.request_seconds",
        "server.unknown_fields",
    }
)
"""Settings of ours that need no restart; those of a feature say so themselves."""

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
    live = need_no_restart(type(running))
    if running.engine.nnodes > 1:
        live -= ALIKE
    names = [where for where, value in _flat(running) if value != _at(wished, where)]
    return Reread(
        _merge(running, wished, live),
        tuple(_spell(where) for where in names if where in live),
        tuple(_spell(where) for where in names if where not in live),
    )


def need_no_restart(settings: type[Settings]) -> Set[str]:
    """Return the names of all settings that can change while the daemon runs."""
    said = settings_in(settings)
    of_features = {".".join(map(str, where)) for where, setting in said if setting.live}
    return NEED_NO_RESTART | of_features


def _flat(table: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values_of(table):
        if is_table(type(value)):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _at(settings: Any, where: str) -> Any:
    value: Any = settings
    for name in where.split("."):
        value = getattr(value, name)
    return value


def _merge[T](running: T, wished: T, live: Set[str], above: str = "") -> T:
    update: dict[str, Any] = {}
    for name, value in values_of(running):
        other = getattr(wished, name)
        if is_table(type(value)):
            update[name] = _merge(value, other, live, f"{above}{name}.")
        elif f"{above}{name}" in live:
            update[name] = other
    return with_values(running, update)


def _spell(where: str) -> str:
    """Name a setting as the file does."""
    section, _, key = where.rpartition(".")
    return f"[{section}] {key}" if section else f"[[{key}]]"
