"""The tables of settings: pydantic's models, and the plain dataclasses of features."""

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any, Protocol, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter
from pydantic.fields import FieldInfo

from hotreload.setting import Setting
from hotreload.settings.given import SettingPath


class SettingsTable(BaseModel):
    """A TOML table: no unknown keys, nothing changes once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, coerce_numbers_to_str=True)


class HasSettings(Protocol):
    """A feature, as far as its settings go."""

    @property
    def name(self) -> str:
        """The name of its table."""

    @property
    def settings(self) -> type[Any] | None:
        """A frozen dataclass; None where it has no settings."""


def fields_of(table: type[Any]) -> Mapping[str, FieldInfo]:
    """Return the facts of each setting in a table."""
    if issubclass(table, BaseModel):
        return table.model_fields
    kinds = get_type_hints(table, include_extras=True)
    return {each.name: _field(kinds[each.name], each.default) for each in fields(table)}


def _field(kind: Any, default: Any) -> FieldInfo:
    field: FieldInfo = FieldInfo.from_annotation(kind)
    setting = setting_of(field)
    field.default = default
    field.description = setting.words
    field.examples = None if setting.example is None else [setting.example]
    return field


def setting_of(field: FieldInfo) -> Setting:
    """Return what a feature says of its setting."""
    return next((each for each in field.metadata if isinstance(each, Setting)), Setting())


def table_of(field: FieldInfo | None) -> type[Any] | None:
    """Return the class of a setting that is a table, or an array of them."""
    kind = field.annotation if field else None
    if get_origin(kind) is tuple:
        kind = get_args(kind)[0]
    return kind if is_table(kind) else None


def is_table(kind: Any) -> bool:
    """Return whether this is the class of a table."""
    return isinstance(kind, type) and (issubclass(kind, BaseModel) or is_dataclass(kind))


def values_of(table: Any) -> Iterator[tuple[str, Any]]:
    """Yield each setting of a table with its value."""
    for name in fields_of(type(table)):
        yield name, getattr(table, name)


def with_values[T](table: T, update: Mapping[str, Any]) -> T:
    """Return the table with other values.

    Nothing is checked anew: what waits for a restart may leave a mixture that no file may hold.
    """
    if isinstance(table, BaseModel):
        return table.model_copy(update=update)
    made = copy(table)
    for name, value in update.items():
        object.__setattr__(made, name, value)
    return made


def defaults_of(table: type[Any]) -> dict[str, Any]:
    """Return a table's defaults, as JSON has them."""
    if issubclass(table, BaseModel):
        return table.model_construct().model_dump(mode="json")
    defaults: dict[str, Any] = TypeAdapter(table).dump_python(table(), mode="json")
    return defaults


# --- names -------------------------------------------------------------------------------


def names_in(table: type[Any], where: SettingPath) -> list[str]:
    """List the names in a table, or in the one at this place in it."""
    inner: type[Any] | None = table
    for part in where:
        if inner is not None and isinstance(part, str):
            inner = table_of(fields_of(inner).get(part))
    return list(fields_of(inner)) if inner else []


def every(table: type[Any], above: SettingPath = ()) -> Iterator[SettingPath]:
    """Yield the place of every setting."""
    for name, field in fields_of(table).items():
        where, inner = (*above, name), table_of(field)
        yield from [where] if inner is None else every(inner, where)


def settings_in(table: type[Any], above: SettingPath = ()) -> Iterator[tuple[SettingPath, Setting]]:
    """Yield the place of each setting of a feature, and of each table of one, with what it says."""
    for name, field in fields_of(table).items():
        yield (*above, name), setting_of(field)
        if (inner := table_of(field)) is not None:
            yield from settings_in(inner, (*above, name))
