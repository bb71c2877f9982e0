"""Every setting and its default, as frozen tables; `load` reads them from TOML.

The tables check text alone: whether a folder exists or a port is free shows when it is opened.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, make_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from hotreload.checkpoint.settings import CheckSettings
from hotreload.core.rules import ReloadSettings, Rules
from hotreload.engine.answering.probe import Probe
from hotreload.engine.options import EngineSettings, UnseenOptions
from hotreload.facts.names import DEFAULT_SOCKET, DEFAULT_STATE
from hotreload.server_limits import Limits, LimitSettings
from hotreload.setting import (
    After,
    AtLeastOne,
    Before,
    Deadline,
    HostPort,
    Location,
    SettingsOfFeature,
    TextBounds,
    WorkerCount,
    Written,
    host_port,
    origin,
    setting,
)
from hotreload.settings.tables import FORBID_UNKNOWN, HasSettings, fields_of, values_of
from hotreload.sources.settings import SourceSettings


def _mode(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"(0o)?0?[0-7]{3}", value):
        return int(value, 8)
    raise ValueError(f'{value!r} is no file mode: write it in quotes, such as "0660"')


FileMode = Annotated[int, Before(_mode), Written("{:04o}".format)]


MODEL_NAME = r"^[A-Za-z0-9./][A-Za-z0-9_.:@/-]*$"
"""A name for clients; that of a model in a folder may be its path, as sglang-jax has it."""
ModelName = Annotated[str, TextBounds(pattern=MODEL_NAME)]


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The HTTP API."""

    socket: Location = setting(DEFAULT_SOCKET, "The unix socket's path.")
    mode: FileMode = setting(0o660, "Who may connect to the socket, as a file mode in quotes.")
    group: str | None = setting(
        None, "The group that owns the socket; unset, the daemon's own.", example="llm"
    )
    admin_group: str | None = setting(
        None,
        "Group whose members may use the admin routes, as root and the daemon's user may.",
        example="llm-admin",
    )
    tcp: HostPort | None = setting(
        None,
        "A host:port to listen on, too; admin routes need a key of `admin_keys_file` there.",
        example="127.0.0.1:8000",
    )
    tls_cert: Location | None = setting(
        None,
        "PEM file of a certificate chain, for TLS on `tcp`; read again when it changes.",
        example="tls.crt",
    )
    tls_key: Location | None = setting(
        None, "PEM file of its key, without a password.", example="tls.key"
    )
    model_name: ModelName | None = setting(
        None,
        "The model's name for clients of /v1; unset, the name of [engine] model's folder.",
        example="qwen3",
    )
    hosts: tuple[str, ...] = setting(
        (),
        "Host names that browsers may use, beside addresses, localhost and names without a dot. "
        "Other clients may use any.",
        example=["llm.example.com"],
    )
    api_keys_file: Location | None = setting(
        None,
        "File (or systemd credential) of API keys, one a line: KEY, or NAME KEY requests=8 "
        "tokens_per_minute=20000; # begins a comment; read again when it changes. Clients over TCP "
        "must send one as Authorization: Bearer. Unset, none is needed.",
        example="/etc/hotreload/api-keys",
    )
    admin_keys_file: Location | None = setting(
        None,
        "The same for keys that open the admin routes over TCP, too. Unset, these are closed "
        "there.",
        example="/etc/hotreload/admin-keys",
    )
    cors_origins: tuple[Annotated[str, After(origin)], ...] = setting(
        (),
        "Origins of sites whose pages may ask the model and read the answers. Unset, none.",
        example=["https://chat.example.com"],
    )
    access_log: bool = setting(
        False,
        "Log each answered request: client, path, code, seconds, generation, X-Request-Id, trace, "
        "tokens.",
    )
    update_roots: tuple[Location, ...] = setting(
        (),
        "Folders beside those of [source] from which a checkpoint may be ordered. They are not "
        "followed.",
        example=["/mnt/trainer"],
    )
    unknown_fields: Literal["refuse", "ignore"] = setting(
        Limits().unknown_fields,
        "What to do with an unknown field in a request to the model. A known one that asks for "
        "what is not served is refused either way.",
        live=True,
    )
    tool_call_parser: str | None = setting(
        None,
        "The sglang-jax parser of tool calls; unset, the one that fits the model's chat template, "
        "if known.",
        example="qwen25",
    )
    workers: WorkerCount = setting(
        "auto",
        "Processes that handle HTTP beside the engine's. 0: none. auto: 0 on up to 4 processors, "
        "else one for each 8, 1 to 8.",
    )
    limits: LimitSettings = setting(LimitSettings())


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Prometheus metrics."""

    address: Annotated[str, After(lambda text: text and host_port(text, 9479))] = setting(
        "127.0.0.1:9479", "The host:port of the metrics; empty: on the unix socket alone."
    )
    per_leaf: bool = setting(True, "Export a checksum for each leaf of the weights.")
    max_leaves: AtLeastOne = setting(
        1000,
        "Of how many leaves, at most, the checksum is exported; hotreload_leaf_checksums_left_out "
        "counts the others.",
    )
    expect_every: Deadline | None = setting(
        None,
        "How often something new should go live, else the alert NothingNew fires. Unset, never.",
        example="6h",
    )


@dataclass(frozen=True, slots=True)
class StateSettings:
    """The state that survives a restart."""

    directory: Location = setting(
        DEFAULT_STATE, "Folder of the state; the daemon must be able to write to it."
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The log on stderr."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        "info", "The lowest level that is written.", live=True
    )
    format: Literal["auto", "json", "console"] = setting(
        "auto", "auto is console on a terminal, else JSON lines.", live=True
    )


NAMING_SECONDS = 5.0
"""Seconds by which an attempt's own time limit is later than that of other ranks, so that the error
names the late rank."""


@dataclass(frozen=True)
class Settings:
    """Everything an operator can decide; `class_with` adds the tables of features."""

    __pydantic_config__ = FORBID_UNKNOWN

    engine: EngineSettings = setting(EngineSettings())
    source: SourceSettings = setting(SourceSettings())
    checks: CheckSettings = setting(CheckSettings())
    reload: ReloadSettings = setting(ReloadSettings())
    probe: tuple[Probe, ...] = setting((), live=True)
    server: ServerSettings = setting(ServerSettings())
    metrics: MetricsSettings = setting(MetricsSettings())
    state: StateSettings = setting(StateSettings())
    log: LogSettings = setting(LogSettings())

    def of[T](self, table: type[T]) -> T:
        """Return a feature's table by its class: its defaults where there are no settings of it."""
        return (
            next((each for _, each in values_of(self) if isinstance(each, table)), None) or table()
        )

    def of_features(self) -> Iterator[tuple[str, SettingsOfFeature]]:
        """Yield the tables of features that the start asks for more than values."""
        yield from (each for each in values_of(self) if isinstance(each[1], SettingsOfFeature))

    @property
    def unseen(self) -> UnseenOptions:
        """All that the features need of an engine beside the probes."""
        needs: dict[str, Any] = {}
        for _, table in self.of_features():
            needs |= table.engine_needs()
        return UnseenOptions(**needs)

    @property
    def stage_seconds(self) -> float:
        """Seconds that staging may take; on other hosts they include the fetch and the checks."""
        reload = self.reload
        if self.engine.nnodes == 1:
            return reload.stage_timeout
        return reload.fetch_timeout + reload.validate_timeout + reload.stage_timeout

    @property
    def rules(self) -> Rules:
        """The rules that these settings make for each attempt."""
        later = NAMING_SECONDS if self.engine.nnodes > 1 else 0.0
        longest = self.server.limits.request_seconds
        given = {
            **dict(values_of(self.reload)),
            "stage_timeout": self.stage_seconds + later,
            "probe_timeout": self.reload.probe_timeout + later,
            "finish_timeout": self.reload.finish_timeout or longest,
        }
        return Rules(**given, longest_drain=longest, hosts=self.engine.nnodes)

    @property
    def hub_cache(self) -> Path:
        """The folder of downloads from a hub."""
        return self.source.cache or self.state.directory / "hub"

    @property
    def checkpoint_roots(self) -> list[Path]:
        """The only folders that a checkpoint may come from."""
        cache = self.hub_cache if self.source.kind == "huggingface" else None
        named = (self.source.path, cache, self.engine.model, *self.server.update_roots)
        return [folder for folder in named if folder is not None]

    @property
    def model_name(self) -> str:
        """The name of the model for clients of /v1: the configured one, else its folder's."""
        folder = self.engine.model
        # Not resolved: reading the link may hang, and its target may change.
        named = self.server.model_name or (folder.absolute().name if folder else "")
        return re.sub(r"[^A-Za-z0-9_.:@/-]", "-", named) or "model"

    @property
    def longest_download(self) -> float:
        """Seconds that a start may spend on a download: none where a folder is followed."""
        return self.reload.fetch_timeout if self.source.kind == "huggingface" else 0.0

    def __post_init__(self) -> None:
        """ValueError says which settings contradict each other."""
        if self.server.tcp and self.server.tcp == self.metrics.address:
            raise ValueError(
                f"[server] tcp and [metrics] address are both {self.server.tcp}; change one"
            )
        if (self.server.tls_cert is None) != (self.server.tls_key is None):
            raise ValueError("[server] tls_cert and tls_key go together; set both, or none")

    def __reduce__(self) -> Any:
        """Have a worker make the class anew: pickles find none that a function made."""
        ours, all_kinds = fields_of(Settings), fields_of(type(self))
        tables = {name: each.kind for name, each in all_kinds.items() if name not in ours}
        return _blank, (tuple(tables.items()),), vars(self)


def class_with(features: Iterable[HasSettings]) -> type[Settings]:
    """Return the class of all settings: ours, and the table of each feature."""
    return _with(tuple((each.name, each.settings) for each in features if each.settings))


@cache
def _with(tables: tuple[tuple[str, type[Any]], ...]) -> type[Settings]:
    fields = [(name, table, setting(table())) for name, table in tables]
    made = make_dataclass("Settings", fields, bases=(Settings,), frozen=True)
    made.__doc__ = Settings.__doc__
    return made


def _blank(tables: tuple[tuple[str, type[Any]], ...]) -> Settings:
    """Make one without values, which its pickle has."""
    return object.__new__(_with(tables))
