"""Which settings can change while the daemon runs; every other one waits for a restart."""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

from hotreload.settings.sections import Settings
from hotreload.settings.tables import fields_in, is_table, values_of, with_values

JUDGING = ("checks", "probe")
"""Tables by which all hosts of one engine judge checkpoints: there a change needs a restart of
all."""


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
        live -= list_judging(type(running))
    before, after = dict(_flat(running)), dict(_flat(wished))
    names = [where for where, value in before.items() if value != after[where]]
    return Reread(
        _merge(running, wished, live),
        tuple(_spell(where) for where in names if where in live),
        tuple(_spell(where) for where in names if where not in live),
    )


def need_no_restart(settings: type[Settings]) -> Set[str]:
    """Return the names of all settings that can change while the daemon runs."""
    found = fields_in(settings)
    return {".".join(map(str, where)) for where, field in found if field.setting.live}


def list_judging(settings: type[Settings]) -> Set[str]:
    """Return those of them by which all hosts of one engine judge checkpoints."""
    return {name for name in need_no_restart(settings) if name.partition(".")[0] in JUDGING}


def _flat(table: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values_of(table):
        if is_table(type(value)):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


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
