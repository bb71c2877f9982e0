"""Faults of the settings in words, a line for each: its place, and what to change."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import ErrorDetails

from hotreload.setting import is_local
from hotreload.settings.given import ENV_PREFIX, SECRET_NAMES, SettingPath
from hotreload.settings.sections import Settings
from hotreload.settings.tables import every, fields_in, names_in

OUR_WORDS = {
    "missing": "must be set",
    "model_type": "must be a table",
    "dataclass_type": "must be a table",
    "tuple_type": "must be an array; tables in it are written as [[probe]]",
}
"""Our words in place of pydantic's own."""
UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
"""The codes of pydantic's, of a model and of a dataclass, for a name that is none of its."""
_ONE_UNDERSCORE = "HOTRELOAD_"


class Faults:
    """Puts faults of these settings' values into words."""

    def __init__(self, settings: type[Settings], origins: Mapping[SettingPath, str]) -> None:
        """`origins` has where each value came from."""
        self._settings = settings
        self._origins = origins
        self._places = [*every(settings)]
        self._moved = {
            tuple(field.setting.was.split(".")): where
            for where, field in fields_in(settings)
            if field.setting.was
        }

    def find_new_name(self, where: SettingPath) -> str | None:
        """Say the new name of a setting that had another; None for any other."""
        news = self._news_of(where)
        if not news:
            return None
        origin = origin_of(where, self._origins)
        named = " or ".join(_name_like(new, origin) for new in news)
        return f"{spell(where, origin)}: is {named} now"

    def _news_of(self, where: SettingPath) -> Sequence[SettingPath]:
        """The new places of what stood here: of a table one for each that took a part of it."""
        for old, new in self._moved.items():
            if where[: len(old)] == old:
                return [(*new, *where[len(old) :])]
        below = [new for old, new in self._moved.items() if old[: len(where)] == where]
        is_table = bool(below) and not names_in(self._settings, where)
        return [*dict.fromkeys(new[: len(where)] for new in below)] if is_table else []

    def of(self, detail: ErrorDetails) -> str:
        """Describe pydantic's finding, in the spelling of the value's origin."""
        where = detail["loc"]
        origin = origin_of(where, self._origins)
        if detail["type"] in UNKNOWN:
            if (words := self.find_new_name(where)) is not None:
                return words
            if len(where) == 1 and where in self._origins:
                return self._outside_any_section(where, origin)
        return f"{spell(where, origin)}: {self._describe(detail, origin)}".removeprefix(": ")

    def _describe(self, detail: ErrorDetails, origin: str) -> str:
        where, kind = detail["loc"], detail["type"]
        if kind in UNKNOWN:
            return f"unknown; {self._hint(where, origin)}"
        if kind == "value_error":
            return str(detail["ctx"]["error"])
        if words := OUR_WORDS.get(kind):
            return words
        value = repr(mask(".".join(map(str, where)), detail["input"]))
        return f"{detail['msg'].removeprefix('Input ')}, not {value[:80]}"

    def _hint(self, where: SettingPath, origin: str) -> str:
        homes, variable = self._homes(str(where[-1])), origin.removeprefix("env ")
        names = names_in(self._settings, where[:-1])
        if homes and len(where) > 1:
            return f"it belongs to {' or '.join(homes)}"
        if variable != origin and (meant := self._find_meant(variable)):
            return f"did you mean {meant}?"
        if near := difflib.get_close_matches(str(where[-1]), names, n=1):
            meant = spell((*where[:-1], *near), origin)
            return f"did you mean {meant if variable != origin else near[0]}?"
        return f"known are {', '.join(names)}"

    def _outside_any_section(self, where: SettingPath, origin: str) -> str:
        """The fault of a value that stands outside of every section."""
        (name,) = where
        if origin.startswith("file "):
            homes = " or ".join(self._homes(str(name)))
            below = homes or "its section's name, such as [engine]"
            return f"{origin.removeprefix('file ')}: {name}: in no section; put it below {below}"
        places = [place for place in self._places if place[-1] == name]
        meant = " or ".join(_name_like(place, origin) for place in places)
        hint = f"did you mean {meant}?" if meant else self._hint(where, origin)
        return f"{spell(where, origin)}: unknown; {hint}"

    def list_misnamed(self, environ: Mapping[str, str]) -> Iterator[str]:
        """List variables that look like settings and lack an underscore: they would be ignored."""
        for name in sorted(environ):
            rest = name.removeprefix(_ONE_UNDERSCORE)
            if rest == name or name.startswith(ENV_PREFIX):
                continue
            if meant := self._find_meant(name):
                yield f"{name}: unknown; did you mean {meant}?"
            elif "__" in rest and rest.partition("__")[0].lower() in names_in(self._settings, ()):
                words = f"a setting's name begins with {ENV_PREFIX}, with two underscores"
                yield f"{name}: unknown; {words}"

    def _find_meant(self, variable: str) -> str | None:
        """The variable of the setting that this one names, but for the number of underscores."""
        squeezed = variable.replace("_", "").upper()
        names = (ENV_PREFIX + "__".join(map(str, where)).upper() for where in self._places)
        return next((name for name in names if name.replace("_", "") == squeezed), None)

    def _homes(self, key: str) -> list[str]:
        """The sections that have a setting of this name, as they stand in the file."""
        homes = [where[:-1] for where in self._places if where[-1] == key]
        return [
            "[[probe]]" if home == ("probe",) else f"[{'.'.join(map(str, home))}]" for home in homes
        ]


def origin_of(where: SettingPath, origins: Mapping[SettingPath, str]) -> str:
    """Name where a value came from, or the table that holds the value."""
    starts = [where[:length] for length in range(len(where), 0, -1)]
    parts = [given for given in origins if where and given[: len(where)] == where]
    return next((origins[given] for given in (*starts, *parts) if given in origins), "default")


def spell(where: SettingPath, origin: str) -> str:
    """Name a setting as its file, variable or argument spells it."""
    if origin.startswith(f"env {ENV_PREFIX}"):
        return ENV_PREFIX + "__".join(map(str, where)).upper()
    if origin == "--set":
        return f"--set {'.'.join(map(str, where))}"
    name = _in_toml(where)
    return f"{origin.removeprefix('file ')}: {name}" if origin != "default" else name


def _name_like(where: SettingPath, origin: str) -> str:
    """Name another setting in the same spelling, without the place where this one was given."""
    if origin.startswith("file "):
        return _in_toml(where)
    return spell(where, origin).removeprefix("--set ")


def _in_toml(where: SettingPath) -> str:
    match where:
        case ():
            return ""
        case ("probe", int(index), *rest):
            return " ".join([f"[[probe]] number {index + 1}", *map(str, rest)])
        case (section,):
            return f"[{section}]"
        case (*sections, key):
            return f"[{'.'.join(map(str, sections))}] {key}"
    raise AssertionError(where)


def mask(name: str, value: Any) -> Any:
    """Return the value with every secret text in it replaced by ***."""
    if isinstance(value, dict):
        return {key: mask(f"{name}.{key}", inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [mask(name, inner) for inner in value]
    return "***" if isinstance(value, str) and value and SECRET_NAMES.search(name) else value


# --- an engine over several hosts: what it needs, and what it cannot do -------------------

HostFault = tuple[SettingPath, str]
"""A setting, and why it cannot be so."""


def unfit_for_hosts(settings: Settings) -> Iterator[HostFault]:
    """Each setting that does not fit the number of hosts, with what to change."""
    if settings.engine.nnodes == 1:
        yield from _of_several(settings)
    else:
        yield from _of_these(settings)
        yield from _not_with_several(settings, f"with nnodes = {settings.engine.nnodes}")


def _of_several(settings: Settings) -> Iterator[HostFault]:
    """A fault for each setting that speaks of other hosts, if there are none."""
    why = "is for an engine over several hosts: set [engine] nnodes, too, or leave it out"
    for key in ("node_rank", "dist_init_addr", "join_secret_file"):
        if value := getattr(settings.engine, key):
            yield ("engine", key), f"{value} {why}"


def _of_these(settings: Settings) -> Iterator[HostFault]:
    engine = settings.engine
    count = engine.nnodes
    if engine.dist_init_addr is None:
        words = f"not set, and nnodes = {count}; name rank 0's host and a port of it"
        yield ("engine", "dist_init_addr"), words
    elif not (engine.join_secret_file or engine.insecure_join or is_local(engine.dist_init_addr)):
        words = f"whoever reaches {engine.dist_init_addr} could run programs on every host"
        todo = "set [engine] join_secret_file, the same on all hosts, or serve --insecure-join"
        yield ("engine", "dist_init_addr"), f"{words}: {todo}"
    if engine.node_rank >= count:
        words = f"there is no rank {engine.node_rank} with nnodes = {count}: 0 to {count - 1}"
        yield ("engine", "node_rank"), words
    if engine.tp % count:
        words = f"{engine.tp} devices cannot be shared out evenly with nnodes = {count}"
        yield ("engine", "tp"), f"{words}; make it a multiple of that"


def _not_with_several(settings: Settings, beside: str) -> Iterator[HostFault]:
    """A fault for each setting that an engine over several hosts cannot follow yet."""
    engine, reload = settings.engine, settings.reload
    if engine.replicas > 1:
        words = f"only 1 {beside}: one daemon leads one engine there"
        yield ("engine", "replicas"), words
    if engine.loader == "upstream":
        words = f"not 'upstream' {beside}: that loader would stop every rank to load; use 'auto'"
        yield ("engine", "loader"), words
    if engine.boot == "dummy":
        words = f"not 'dummy' {beside}: the ranks would not have the same weights; use 'model'"
        yield ("engine", "boot"), words
    if engine.args.get("schedule_policy") == "random":
        words = f"not 'random' {beside}: the ranks would not take the same request next"
        yield ("engine", "args", "schedule_policy"), words
    if reload.keep_previous == "host":
        words = f"not 'host' {beside}: no host holds all of the weights; use 'device' or 'none'"
        yield ("reload", "keep_previous"), words
    if reload.memory != "double":
        words = f"not {reload.memory!r} {beside}: no host holds all of the weights; use 'double'"
        yield ("reload", "memory"), words
    for name, table in settings.of_features():
        yield from (((name, key), words) for key, words in table.unfit_for_hosts(beside))
