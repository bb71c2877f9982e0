"""Reads the settings: TOML in, frozen models out; `sections` says which settings there are.

The defaults, then the file, then HOTRELOAD__SECTION__KEY, then --set: the last one wins.
One error lists all faults, each with its place and what was probably meant.
"""

import difflib
import json
import re
import textwrap
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from hotreload.errors import ConfigError
from hotreload.settings.sections import ProbeSettings, Settings

__all__ = ["Loaded", "Settings", "check_servable", "config_file", "default_toml", "load"]

DEFAULT_FILE = Path("/etc/hotreload/hotreload.toml")

ENV_PREFIX = "HOTRELOAD__"
SECRET = re.compile(r"token(?!iz|_file)|secret|password|api_?key", re.IGNORECASE)

WORDS = {
    "missing": "must be set",
    "model_type": "must be a table",
    "tuple_type": "must be an array; tables in it are written as [[probe]]",
}
"""What to say instead of pydantic's own words."""

Where = tuple[str | int, ...]
"""A setting's place: ("reload", "drain_timeout"), ("probe", 0, "regex")."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings, and where each came from: default, file PATH, env NAME or --set."""

    settings: Settings
    origins: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Given:
    """One value that somebody gave."""

    where: Where
    value: Any
    origin: str


def config_file(given: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the file to read: the one given, $HOTRELOAD_CONFIG, or the default if it is there."""
    if given is None and (named := environ.get("HOTRELOAD_CONFIG")):
        return Path(named)
    return given or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)


def load(file: Path | None, sets: Sequence[str], environ: Mapping[str, str]) -> Loaded:
    """Read and check all settings; one ConfigError lists everything that is wrong.

    Relative paths in the file start at the file's folder, others at the current one.
    """
    given = [*(_from_file(file) if file else ()), *_from_env(environ), *_from_sets(sets)]
    origins = {item.where: item.origin for item in given}
    try:
        settings = Settings.model_validate(_tree(given))
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise _config_error([_fault(detail, origins) for detail in details]) from None
    base = file.absolute().parent if file else Path.cwd()
    return Loaded(_with_absolute_paths(settings, origins, base), _all_origins(settings, origins))


def check_servable(settings: Settings) -> None:
    """Raise a ConfigError that names what `serve` still needs."""
    faults = []
    from_hub = settings.source.kind == "huggingface"
    if settings.engine.model is None and not from_hub:
        faults.append("[engine] model: not set; name the folder of the model to serve")
    if settings.source.path is None and not from_hub:
        faults.append("[source] path: not set; name the folder where checkpoints appear")
    if settings.source.repo is None and from_hub:
        faults.append("[source] repo: not set; name the repo to follow, such as org/name")
    if faults:
        raise _config_error(faults)


def _config_error(faults: Sequence[str]) -> ConfigError:
    if len(faults) == 1:
        return ConfigError(faults[0], findings=faults)
    lines = "".join(f"\n  {fault}" for fault in faults)
    return ConfigError(f"{len(faults)} settings are wrong:{lines}", findings=faults)


# --- what was given ----------------------------------------------------------------------


def _from_file(file: Path) -> list[_Given]:
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise _config_error([f"{file}: cannot be read: {error.strerror}"]) from error
    except (ValueError, RecursionError) as error:
        raise _config_error([f"{file}: is not TOML: {error}"]) from error
    return [_Given(where, value, f"file {file}") for where, value in _leaves(data)]


def _leaves(data: Mapping[str, Any], above: Where = ()) -> Iterator[tuple[Where, Any]]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


def _from_env(environ: Mapping[str, str]) -> Iterator[_Given]:
    for name, text in sorted(environ.items()):
        if name.startswith(ENV_PREFIX):
            where = tuple(name.removeprefix(ENV_PREFIX).lower().split("__"))
            yield _Given(where, _value(text), f"env {name}")


def _from_sets(sets: Sequence[str]) -> Iterator[_Given]:
    if bad := [f"--set {text}: write it as section.key=value" for text in sets if "=" not in text]:
        raise _config_error(bad)
    for text in sets:
        key, _, value = text.partition("=")
        yield _Given(tuple(key.strip().split(".")), _value(value.strip()), "--set")


def _value(text: str) -> Any:
    """Read a TOML value; anything else, and a date, stays plain text."""
    try:
        value = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    simple = isinstance(value["value"], bool | int | float | str | list | dict)
    return value["value"] if simple and len(value) == 1 else text


def _tree(given: Sequence[_Given]) -> dict[str | int, Any]:
    root: dict[str | int, Any] = {}
    for item in given:
        node = root
        for part in item.where[:-1]:
            if not isinstance(node.get(part), dict):
                node[part] = {}
            node = node[part]
        node[item.where[-1]] = item.value
    return root


# --- what is wrong with it ---------------------------------------------------------------


def _fault(detail: ErrorDetails, origins: Mapping[Where, str]) -> str:
    where = detail["loc"]
    origin = _origin(where, origins)
    return f"{_spelled(where, origin)}: {_said(detail, origin)}".removeprefix(": ")


def _origin(where: Where, origins: Mapping[Where, str]) -> str:
    """Say where a value came from: who gave it, or the table that holds it, or a part of it."""
    starts = [where[:length] for length in range(len(where), 0, -1)]
    parts = [given for given in origins if where and given[: len(where)] == where]
    return next((origins[given] for given in (*starts, *parts) if given in origins), "default")


def _spelled(where: Where, origin: str) -> str:
    """Name a setting as the one who gave it wrote it."""
    if origin.startswith("env "):
        return ENV_PREFIX + "__".join(map(str, where)).upper()
    if origin == "--set":
        return f"--set {'.'.join(map(str, where))}"
    name = _in_toml(where)
    return f"{origin.removeprefix('file ')}: {name}" if origin != "default" else name


def _in_toml(where: Where) -> str:
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


def _said(detail: ErrorDetails, origin: str) -> str:
    where, kind = detail["loc"], detail["type"]
    if kind == "extra_forbidden":
        return f"unknown; {_hint(where, origin)}"
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    if words := WORDS.get(kind):
        return words
    value = repr(masked(".".join(map(str, where)), detail["input"]))
    return f"{detail['msg'].removeprefix('Input ')}, not {value[:80]}"


def _hint(where: Where, origin: str) -> str:
    names = _names_in(where[:-1])
    homes = [f"[{s}]" for s in Settings.model_fields if str(where[-1]) in _names_in((s,))]
    if homes and len(where) > 1:
        return f"it belongs to {' or '.join(homes)}"
    near = difflib.get_close_matches(str(where[-1]), names, n=1)
    if near:
        in_env = origin.startswith("env ")
        return f"did you mean {_spelled((*where[:-1], *near), origin) if in_env else near[0]}?"
    return f"known are {', '.join(names)}"


def _names_in(where: Where) -> list[str]:
    model: type[BaseModel] | None = Settings
    for part in where:
        if model is not None and isinstance(part, str):
            model = _table(model.model_fields.get(part))
    return list(model.model_fields) if model else []


def _table(field: FieldInfo | None) -> type[BaseModel] | None:
    """Return the model of a setting that is a table, or an array of them."""
    kind = field.annotation if field else None
    if get_origin(kind) is tuple:
        kind = get_args(kind)[0]
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


# --- what came of it ---------------------------------------------------------------------


def masked(name: str, value: Any) -> Any:
    """Return the value with every secret text in it replaced by ***."""
    if isinstance(value, dict):
        return {key: masked(f"{name}.{key}", inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [masked(name, inner) for inner in value]
    return "***" if isinstance(value, str) and value and SECRET.search(name) else value


def _all_origins(settings: Settings, origins: Mapping[Where, str]) -> dict[str, str]:
    data = settings.model_dump(mode="json")
    return {".".join(map(str, where)): _origin(where, origins) for where, _ in _leaves(data)}


def _with_absolute_paths(settings: Settings, origins: Mapping[Where, str], base: Path) -> Settings:
    tables = {name: table for name, table in settings if isinstance(table, BaseModel)}
    changed = {name: _anchored(name, table, origins, base) for name, table in tables.items()}
    return settings.model_copy(update=changed)


def _anchored(
    section: str, table: BaseModel, origins: Mapping[Where, str], base: Path
) -> BaseModel:
    paths = {}
    for name, value in table:
        if isinstance(value, Path):
            in_file = _origin((section, name), origins).startswith("file ")
            paths[name] = (base if in_file else Path.cwd()) / value
    return table.model_copy(update=paths)


# --- the file of defaults ----------------------------------------------------------------

PREAMBLE = """\
# Settings of hotreload. Nothing is set here: each line that begins with #name shows the
# default, or an example where nothing is set by default.
#
# Durations are seconds, or text such as "250ms", "30s", "5m". Relative paths start at this
# file's folder. HOTRELOAD__SECTION__KEY in the environment overrides this file, and
# --set section.key=value overrides both. `hotreload check-config FILE` checks it."""


def default_toml() -> str:
    """Return the file that shows every setting, what it does and its default."""
    lines = [PREAMBLE]
    for name, field in Settings.model_fields.items():
        table = _table(field)
        assert table is not None, "every section is a table"
        header = f"#[[{name}]]" if table is ProbeSettings else f"[{name}]"
        lines += ["", "", *_comment(str(table.__doc__)), header, *_shown(name, table)]
    return "\n".join(lines) + "\n"


def _shown(section: str, table: type[BaseModel]) -> list[str]:
    defaults = table.model_construct().model_dump(mode="json")
    lines = []
    for name, field in table.model_fields.items():
        inner = _table(field)
        if inner is not None:
            header = f"[{section}.{name}]"
            lines += ["", *_comment(str(inner.__doc__)), header, *_shown(header[1:-1], inner)]
        elif isinstance(defaults.get(name), dict):
            lines += ["", *_comment(_about(field)), f"[{section}.{name}]"]
            lines += [f"#{key} = {to_toml(value)}" for key, value in _example(field).items()]
        else:
            shown = _example(field) if field.examples else defaults[name]
            lines += ["", *_comment(_about(field)), f"#{name} = {to_toml(shown)}"]
    return lines


def _about(field: FieldInfo) -> str:
    words = str(field.description)
    if get_origin(field.annotation) is Literal and len(get_args(field.annotation)) > 1:
        words += f" One of {', '.join(get_args(field.annotation))}."
    if field.examples and not field.is_required():
        words += "\n\nNot set by default."
    return words


def _example(field: FieldInfo) -> Any:
    return field.examples[0] if field.examples else None


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
