"""The values that were given in the file, the environment and by --set, each with its giver."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotreload.errors import ConfigError
from hotreload.settings.toml_file import read_toml

ENV_PREFIX = "HOTRELOAD__"

Where = tuple[str | int, ...]
"""A setting's place: ("reload", "drain_timeout"), ("probe", 0, "regex")."""


@dataclass(frozen=True, slots=True)
class Given:
    """One value that somebody gave."""

    where: Where
    value: Any
    origin: str


def from_file(file: Path) -> list[Given]:
    """The values that the file sets; ConfigError when it cannot be read."""
    return [Given(where, value, f"file {file}") for where, value in leaves(read_toml(file))]


def leaves(data: Mapping[str, Any], above: Where = ()) -> Iterator[tuple[Where, Any]]:
    """Each value in these tables that is no table itself, with its place."""
    for key, value in data.items():
        if isinstance(value, dict):
            yield from leaves(value, (*above, key))
        else:
            yield (*above, key), value


def from_env(environ: Mapping[str, str]) -> Iterator[Given]:
    """The values that the environment sets."""
    for name, text in sorted(environ.items()):
        if name.startswith(ENV_PREFIX):
            where = tuple(name.removeprefix(ENV_PREFIX).lower().split("__"))
            yield Given(where, _value(text), f"env {name}")


def from_sets(sets: Sequence[str]) -> Iterator[Given]:
    """The values that --set sets."""
    if bad := [f"--set {text}: write it as section.key=value" for text in sets if "=" not in text]:
        raise ConfigError.listing(bad)
    for text in sets:
        key, _, value = text.partition("=")
        yield Given(tuple(key.strip().split(".")), _value(value.strip()), "--set")


def _value(text: str) -> Any:
    """Read a TOML value; anything else, and a date, stays plain text."""
    try:
        value = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    simple = isinstance(value["value"], bool | int | float | str | list | dict)
    return value["value"] if simple and len(value) == 1 else text


def tree(given: Sequence[Given]) -> dict[str | int, Any]:
    """All of it in tables; of two values in one place the last."""
    root: dict[str | int, Any] = {}
    for item in given:
        node = root
        for part in item.where[:-1]:
            if not isinstance(node.get(part), dict):
                node[part] = {}
            node = node[part]
        node[item.where[-1]] = item.value
    return root
