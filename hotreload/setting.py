"""The settings of a feature: a plain frozen dataclass, whose fields are `Annotated[kind, Setting]`.

`settings` reads them from TOML and checks them; a feature uses the same class directly.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Setting:
    """All that is said of a setting beside its kind and its default."""

    words: str = ""
    """Its meaning, for people. The docstring of a table within a table has that table's."""
    live: bool = False
    """True if it can change while the daemon runs; every other one waits for a restart."""
    example: Any = None
    """The value that is shown in the place of a default that switches it off."""
    was: str = ""
    """The name that it had before, such as "reload.bake": what sets that is refused with its new
    name. Of a table it stands for all that is in the table."""


class SettingsOfFeature:
    """A feature's table that is asked for more than its values; others need not be one."""

    def unfit_for_hosts(self, beside: str) -> Iterator[tuple[str, str]]:
        """Yield each key that does not go with an engine over several hosts, and why.

        `beside` says how many hosts there are.
        """
        yield from ()

    def engine_needs(self) -> Mapping[str, Any]:
        """Return fields of UnseenOptions: what an engine must be started with for the feature."""
        return {}

    def with_files(self) -> Self:
        """Return the table with its files' contents; ConfigError lists their faults."""
        return self
