"""The tables of settings, which are plain frozen dataclasses: pydantic reads and writes them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import EnumType
from functools import cache
from typing import Any, Literal, Protocol, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, TypeAdapter

from hotreload.setting import REQUIRED, Setting
from hotreload.settings.given import SettingPath

FORBID_UNKNOWN = ConfigDict(extra="forbid", coerce_numbers_to_str=True)
"""Has pydantic refuse a name that is none of a table's settings."""


class HasSettings(Protocol):
    """A feature, as far as its settings go."""

    @property
    def name(self) -> str:
        """The name of its table."""

    @property
    def settings(self) -> type[Any] | None:
        """A frozen dataclass; None where it has no settings."""


@dataclass(frozen=True, slots=True)
class TableField:
    """One setting of a table."""

    kind: Any
    """Its type, without what says how it is read."""
    default: Any
    setting: Setting

    @property
    def choices(self) -> Sequence[Any]:
        """Its values, where only some are allowed."""
        if isinstance(self.kind, EnumType):
            return [*self.kind]
        return get_args(self.kind) if get_origin(self.kind) is Literal else ()

    @property
    def is_required(self) -> bool:
        """True if it has no default."""
        return self.default is REQUIRED


def fields_of(table: type[Any]) -> Mapping[str, TableField]:
    """Return the facts of each setting in a table."""
    kinds = get_type_hints(table)
    return {each.name: _field(kinds[each.name], each) for each in fields(table)}


def _field(kind: Any, field: Field[Any]) -> TableField:
    made = field.default_factory
    default = field.default if made is MISSING else made()
    return TableField(kind, default, field.metadata.get("setting", Setting()))


def table_of(field: TableField | None) -> type[Any] | None:
    """Return the class of a setting that is a table, or an array of them."""
    kind = field.kind if field else None
    if get_origin(kind) is tuple:
        kind = get_args(kind)[0]
    return kind if is_table(kind) else None


def is_table(kind: Any) -> bool:
    """Return whether this is the class of a table."""
    return isinstance(kind, type) and is_dataclass(kind)


def values_of(table: Any) -> Iterator[tuple[str, Any]]:
    """Yield each setting of a table with its value."""
    for each in fields(table):
        yield each.name, getattr(table, each.name)


def with_values[T](table: T, update: Mapping[str, Any]) -> T:
    """Return the table with other values.

    Nothing is checked anew: what waits for a restart may leave a mixture that no file may hold.
    """
    made = copy(table)
    for name, value in update.items():
        object.__setattr__(made, name, value)
    return made


_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Make pydantic's reader and writer of a table, once."""


def read_table[T](table: type[T], given: Mapping[Any, Any]) -> T:
    """Make a table of plain values; pydantic's ValidationError lists all faults in them."""
    made: T = _adapter(table).validate_python(given)
    return made


def as_json(table: Any) -> dict[str, Any]:
    """Return a table's values, as JSON has them."""
    values: dict[str, Any] = _adapter(type(table)).dump_python(table, mode="json")
    return values


def defaults_of(table: type[Any]) -> dict[str, Any]:
    """Return a table's defaults, as JSON has them, without those that it has not."""
    required = {name: "" for name, each in fields_of(table).items() if each.is_required}
    return {
        name: value for name, value in as_json(table(**required)).items() if name not in required
    }


# --- names -------------------------------------------------------------------------------


def names_in(table: type[Any], where: SettingPath) -> list[str]:
    """List the names in a table, or in the one at this place in it."""
    inner: type[Any] | None = table
    for part in where:
        if inner is not None and isinstance(part, str):
            inner = table_of(fields_of(inner).get(part))
    return list(fields_of(inner)) if inner else []


def fields_in(
    table: type[Any], above: SettingPath = ()
) -> Iterator[tuple[SettingPath, TableField]]:
    """Yield the place and the facts of each setting, and of each table in a table."""
    for name, field in fields_of(table).items():
        yield (*above, name), field
        if (inner := table_of(field)) is not None:
            yield from fields_in(inner, (*above, name))


def every(table: type[Any]) -> Iterator[SettingPath]:
    """Yield the place of every setting."""
    return (where for where, field in fields_in(table) if table_of(field) is None)
