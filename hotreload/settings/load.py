"""Reads the settings: TOML in, frozen tables out; `sections` says which settings there are.

The defaults, then what starts a rank (`[engine] ranks`), then the file, then
HOTRELOAD__SECTION__KEY, then --set: the last one wins.
One error lists all faults, each with its place and what was probably meant: `faults` words them.
Read again, only some settings can change while the daemon runs; every other one waits for a
restart.
"""

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_origin

from pydantic import ValidationError

from hotreload.errors import ConfigError
from hotreload.facts.names import DEFAULT_CONFIG
from hotreload.setting import NamedFile
from hotreload.settings.faults import Faults, origin_of, spell, unfit_for_hosts
from hotreload.settings.given import (
    GivenValue,
    SettingPath,
    from_env,
    from_file,
    from_ranks,
    from_sets,
    leaves,
    tree,
)
from hotreload.settings.sections import Settings, class_with
from hotreload.settings.tables import (
    HasSettings,
    TableField,
    as_json,
    defaults_of,
    fields_in,
    fields_of,
    is_table,
    read_table,
    table_of,
    values_of,
    with_values,
)

__all__ = ["Loaded", "Settings", "config_file", "default_toml", "load", "missing_to_serve"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, and where each came from: default, file PATH, env NAME or --set."""

    settings: Settings
    origins: Mapping[str, str]


def config_file(given: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the file to read: the one given, $HOTRELOAD_CONFIG, or the default if it is there."""
    if given is None and (named := environ.get("HOTRELOAD_CONFIG")):
        return Path(named)
    return given or (DEFAULT_CONFIG if DEFAULT_CONFIG.exists() else None)


def load(
    file: Path | None,
    sets: Sequence[str | GivenValue],
    environ: Mapping[str, str],
    features: Iterable[HasSettings],
) -> Loaded:
    """Read and check all settings; one ConfigError lists everything that is wrong.

    Relative paths in the file start at the file's folder, others at the current one.
    """
    known = class_with(features)
    given = [*(from_file(file) if file else ()), *from_env(environ), *from_sets(sets)]
    engine = tree(given).get("engine")
    if isinstance(engine, dict) and engine.get("ranks") == "auto":
        given = [*from_ranks(environ, given), *given]
    origins = {item.where: item.origin for item in given}
    words = Faults(known, origins)
    moved = {where: fault for where in origins if (fault := words.find_new_name(where)) is not None}
    faults = [*words.list_misnamed(environ), *moved.values()]
    try:
        values = tree([item for item in given if item.where not in moved])
        settings = read_table(known, values)
        against = unfit_for_hosts(settings)
        faults += (f"{spell(at, origin_of(at, origins))}: {why}" for at, why in against)
    except ValidationError as error:
        faults += (words.of(detail) for detail in error.errors(include_url=False))
    if faults:
        raise ConfigError.from_faults(faults)
    base = file.absolute().parent if file else Path.cwd()
    return Loaded(_with_absolute_paths(settings, origins, base), _all_origins(settings, origins))


def missing_to_serve(settings: Settings) -> Iterator[str]:
    """Yield what `serve` still needs, in words."""
    from_hub, hosts = settings.source.kind == "huggingface", settings.engine.nnodes
    if settings.engine.model is None and not from_hub:
        yield "[engine] model: not set; name the folder of the model to serve"
    elif settings.engine.model is None and hosts > 1:
        why = "the hosts must not each take another commit for the model"
        yield f"[engine] model: not set, and needed with nnodes = {hosts}: {why}"
    if settings.source.path is None and not from_hub:
        yield "[source] path: not set; name the folder where checkpoints appear"
    if settings.source.repo is None and from_hub:
        yield "[source] repo: not set; name the repo to follow, such as org/name"


# --- what came of it ---------------------------------------------------------------------


def _all_origins(settings: Settings, origins: Mapping[SettingPath, str]) -> dict[str, str]:
    given = leaves(as_json(settings))
    return {".".join(map(str, where)): origin_of(where, origins) for where, _ in given}


def _with_absolute_paths(
    settings: Settings, origins: Mapping[SettingPath, str], base: Path
) -> Settings:
    tables = {name: table for name, table in values_of(settings) if is_table(type(table))}
    anchored = {name: _anchor((name,), table, origins, base) for name, table in tables.items()}
    arrays = {
        name: tuple(_anchor((name, n), each, origins, base) for n, each in enumerate(tables))
        for name, tables in values_of(settings)
        if isinstance(tables, tuple)
    }
    return with_values(settings, {**anchored, **arrays})


def _anchor[T](at: SettingPath, table: T, origins: Mapping[SettingPath, str], base: Path) -> T:
    paths: dict[str, object] = {}
    for name, value in values_of(table):
        in_file = origin_of((*at, name), origins).startswith("file ")
        begins = base if in_file else Path.cwd()
        if isinstance(value, Path):
            paths[name] = begins / value
        elif isinstance(value, NamedFile):
            paths[name] = NamedFile(begins / value.file)
        elif isinstance(value, tuple):
            paths[name] = tuple(begins / v if isinstance(v, Path) else v for v in value)
    return with_values(table, paths)


# --- the file of defaults ----------------------------------------------------------------

PREAMBLE = """\
# Settings of hotreload. Nothing is set here: each line that begins with #name shows the
# default, or an example where nothing is set by default.
#
# Durations are seconds, or text such as "250ms", "30s", "5m". Relative paths start at this
# file's folder. HOTRELOAD__SECTION__KEY in the environment overrides this file, and
# --set section.key=value overrides both. `hotreload check-config FILE` checks it."""


def default_toml(features: Iterable[HasSettings]) -> str:
    """Return the file that shows every setting, what it does and its default."""
    lines = [PREAMBLE]
    for name, field in fields_of(class_with(features)).items():
        table = table_of(field)
        assert table is not None, "every section is a table"
        header = f"#[[{name}]]" if get_origin(field.kind) is tuple else f"[{name}]"
        lines += ["", "", *_comment(str(table.__doc__)), header, *_show(name, table)]
    return "\n".join(lines) + "\n"


def _show(section: str, table: type[Any]) -> list[str]:
    defaults = defaults_of(table)
    lines = []
    for name, field in fields_of(table).items():
        inner = table_of(field)
        if inner is not None:
            header = f"[{section}.{name}]"
            lines += ["", *_comment(str(inner.__doc__)), header, *_show(header[1:-1], inner)]
        elif isinstance(defaults.get(name), dict):
            lines += ["", *_comment(_about(field)), f"[{section}.{name}]"]
            lines += [f"#{key} = {to_toml(value)}" for key, value in field.setting.example.items()]
        else:
            example = field.setting.example
            shown = defaults[name] if example is None else example
            lines += ["", *_comment(_about(field)), f"#{name} = {to_toml(shown)}"]
    return lines


def _about(field: TableField) -> str:
    words = field.setting.words
    if len(field.choices) > 1:
        words += f" One of {', '.join(map(str, field.choices))}."
    if field.setting.example is not None and not field.is_required:
        words += "\n\nNot set by default."
    return words


def _comment(text: str) -> list[str]:
    paragraphs = (" ".join(part.split()) for part in text.split("\n\n"))
    return [f"# {line}" for part in paragraphs for line in textwrap.wrap(part, 90)]


def to_toml(value: Any) -> str:
    """Return a JSON-able value as TOML writes it on one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(k)} = {to_toml(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(to_toml, value))}]"
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return json.dumps(value, ensure_ascii=False)


# --- what can change while the daemon runs -----------------------------------------------

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
