"""The settings of a service as its units need them: the file is read, and not checked."""

import tomllib
from pathlib import Path
from typing import Any

from hotreload.errors import ConfigError
from hotreload.facts.names import DEFAULT_SOCKET

SECRETS = (
    ("source", "token_file"),
    ("source", "webhook"),
    ("server", "api_keys_file"),
    ("server", "admin_keys_file"),
    ("engine", "join_secret_file"),
)
"""The settings whose file may be readable by root alone."""


class UnitSettings:
    """A settings file's values; none if there is no file yet."""

    def __init__(self, file: Path) -> None:
        """ConfigError if it cannot be read."""
        self.file = file
        self._tables: dict[str, Any] = {}
        try:
            self._tables = tomllib.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise ConfigError(f"{file}: cannot be read: {error}") from error

    def get(self, section: str, key: str) -> Any:
        """Return a value as it stands in the file; None if it is not set."""
        table = self._tables.get(section)
        return table.get(key) if isinstance(table, dict) else None

    def path(self, section: str, key: str) -> Path | None:
        """Return a path; a relative one starts at the folder of the file."""
        value = self.get(section, key)
        return self._at(value) if value and isinstance(value, str) else None

    def _at(self, value: str) -> Path:
        return self.file.absolute().parent / Path(value).expanduser()

    def _number(self, key: str, default: int) -> int:
        value = self.get("engine", key)
        return value if isinstance(value, int) else default

    @property
    def hosts(self) -> int:
        """The number of hosts of the engine."""
        return self._number("nnodes", 1)

    @property
    def rank(self) -> int | None:
        """The rank of this host; None for an engine on one host."""
        return self._number("node_rank", 0) if self.hosts > 1 else None

    @property
    def follows(self) -> bool:
        """True on a host that is not rank 0."""
        return bool(self.rank)

    @property
    def is_for_cpu(self) -> bool:
        """True if the engine must use no accelerator."""
        return bool(self.get("engine", "device") == "cpu")

    @property
    def socket(self) -> Path:
        """The daemon's socket."""
        return self.path("server", "socket") or DEFAULT_SOCKET

    def list_used(self) -> list[Path]:
        """Return the folders that it names, each once: first those to read, then to write."""
        named = (
            ("engine", "model"),
            ("source", "path"),
            ("source", "cache"),
            ("state", "directory"),
        )
        found = [self.path(*name) for name in named]
        roots = self.get("server", "update_roots")
        given = roots if isinstance(roots, list) else []
        found += [self._at(root) for root in given if isinstance(root, str)]
        return list(dict.fromkeys(path for path in found if path))

    def credentials(self) -> dict[str, Path]:
        """Return each secret's file by its setting; the file's name is the credential's name."""
        found: dict[str, Path] = {}
        for section, key in SECRETS:
            path = self.path(section, key)
            if path is None:
                continue
            other = next((each for each in found.values() if each.name == path.name), path)
            if other != path:
                raise ConfigError(f"[{section}] {key}: {path} has the name of {other}; rename it")
            found[key] = path
        return found
