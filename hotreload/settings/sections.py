"""Every setting, default and limit, as frozen models; `load` reads them from TOML.

The models check text alone: whether a folder exists or a port is free shows when it is opened.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    create_model,
    field_validator,
    model_validator,
)

from hotreload.server_limits import Limits
from hotreload.setting import SettingsOfFeature
from hotreload.settings.engine import EngineSettings
from hotreload.settings.kinds import (
    AtLeastOne,
    Deadline,
    Globs,
    HostPort,
    Location,
    Number,
    WorkerCount,
    host_port,
    origin,
)
from hotreload.settings.reload import ReloadSettings
from hotreload.settings.source import SourceSettings
from hotreload.settings.tables import HasSettings, SettingsTable


def _mode(value: object) -> object:
    if isinstance(value, str) and re.fullmatch(r"(0o)?0?[0-7]{3}", value):
        return int(value, 8)
    raise ValueError(f'{value!r} is no file mode: write it in quotes, such as "0660"')


FileMode = Annotated[
    int, BeforeValidator(_mode), PlainSerializer("{:04o}".format, when_used="json")
]


def _factor(value: float) -> float:
    if value < 1:
        words = "it is a factor: 1 lets no tensor change, 10 lets its norm be ten times as large"
        raise ValueError(f"{value:g} would refuse every checkpoint; {words}")
    return value


class CheckSettings(SettingsTable):
    """The checks that a checkpoint must pass to be loaded at all."""

    extra_tensors: Globs = Field(
        default=(),
        description="Patterns of tensors that a checkpoint may hold though the engine does not "
        "load them.",
        examples=[["*.rotary_emb.inv_freq"]],
    )
    dtype_change: Literal["reject", "cast"] = Field(
        default="reject", description="What to do if a tensor's dtype is not the served one."
    )
    nonfinite: Literal["reject", "allow"] = Field(
        default="reject", description="What to do if weights hold NaN or Inf."
    )
    on_nonfinite_answers: Literal["alert", "rollback"] = Field(
        default="alert",
        description="What to do if the live weights make NaN of a client's prompt. The answer is "
        "withheld and the KV pool cleaned; rollback also rolls back and refuses the revision.",
    )
    max_drift: Annotated[Number, AfterValidator(_factor)] | None = Field(
        default=None,
        description="Refuse a checkpoint if a tensor's norm differs from the live one's by more "
        "than this factor.",
        examples=[10.0],
    )
    verify_live_every: Deadline | None = Field(
        default=None,
        description="How often to compute the live weights' checksums anew; unset, never. It "
        "waits for a moment without requests, at most as long again. A difference raises an alert.",
        examples=["6h"],
    )


class ProbeSettings(SettingsTable):
    """A prompt the new weights must answer well before they answer anybody, or they are refused.

    Repeat the table for more probes. A probe without expectations accepts any answer. Without any
    probe, a built-in one expects that the answer is not one token for ever.
    """

    prompt: str = Field(min_length=1, description="The prompt.", examples=["2 + 2 ="])
    max_new_tokens: AtLeastOne = Field(default=32, description="How long the answer may be.")
    contains: str | None = Field(
        default=None, description="Text that the answer must hold.", examples=["4"], min_length=1
    )
    regex: str | None = Field(
        default=None,
        description="A regular expression that must match somewhere in the answer.",
        examples=[r"\b4\b"],
        min_length=1,
    )
    equals: str | None = Field(
        default=None, description="Text that the whole answer must equal.", examples=[" 4"]
    )
    min_mean_logprob: Annotated[Number, Field(le=0)] | None = Field(
        default=None,
        description="The least that the mean log-probability of the answer's tokens may be.",
        examples=[-4.0],
    )
    max_repeat: AtLeastOne | None = Field(
        default=None, description="How often one token may come in a row.", examples=[8]
    )

    @field_validator("regex")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"{value!r} is no regular expression: {error}") from error
        return value

    @model_validator(mode="after")
    def _can_be_met(self) -> Self:
        whole = self.equals
        if whole is not None and self.contains is not None and self.contains not in whole:
            raise ValueError(f"no answer can equal {whole!r} and contain {self.contains!r}")
        if whole is not None and self.regex is not None and not re.search(self.regex, whole):
            raise ValueError(f"no answer can equal {whole!r} and match {self.regex!r}")
        return self


DEFAULT_LIMITS = Limits()


class LimitSettings(SettingsTable):
    """The most that one client may ask of the server."""

    body_bytes: AtLeastOne = Field(
        default=DEFAULT_LIMITS.body_bytes,
        description="The longest body; a longer one gets 413.",
    )
    bodies_bytes: AtLeastOne = Field(
        default=DEFAULT_LIMITS.bodies_bytes,
        description="Memory for the bodies of all requests under way, beyond 64 KiB of each; a "
        "request that needs more gets 503.",
    )
    header_bytes: AtLeastOne = Field(
        default=DEFAULT_LIMITS.header_bytes,
        description="The longest headers; longer ones get 431.",
    )
    concurrent: AtLeastOne = Field(
        default=DEFAULT_LIMITS.concurrent,
        description="How many requests may be under way; one more gets 503.",
    )
    request_seconds: Deadline = Field(
        default=DEFAULT_LIMITS.request_seconds,
        description="How long a request may take before it is ended.",
    )
    generation_seconds: Deadline = Field(
        default=DEFAULT_LIMITS.generation_seconds,
        description="How long a request waits for the generation of X-Hotreload-Min-Generation; "
        "then it gets 409.",
    )
    batch: AtLeastOne = Field(
        default=DEFAULT_LIMITS.batch, description="How many prompts one request may hold."
    )


class ServerSettings(SettingsTable):
    """The HTTP API."""

    socket: Location = Field(
        default=Path("/run/hotreload/hotreload.sock"), description="The unix socket's path."
    )
    mode: FileMode = Field(
        default=0o660, description="Who may connect to the socket, as a file mode in quotes."
    )
    group: str | None = Field(
        default=None,
        description="The group that owns the socket; unset, the daemon's own.",
        examples=["llm"],
    )
    admin_group: str | None = Field(
        default=None,
        description="Group whose members may use the admin routes, as root and the daemon's user "
        "may.",
        examples=["llm-admin"],
    )
    tcp: HostPort | None = Field(
        default=None,
        description="A host:port to listen on, too; admin routes need a key of `admin_keys_file` "
        "there.",
        examples=["127.0.0.1:8000"],
    )
    model_name: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:@/-]*$",
        description="The model's name for clients of /v1; unset, the name of [engine] model's "
        "folder.",
        examples=["qwen3"],
    )
    hosts: tuple[str, ...] = Field(
        default=(),
        description="Host names that browsers may use, beside addresses, localhost and names "
        "without a dot. Other clients may use any.",
        examples=[["llm.example.com"]],
    )
    api_keys_file: Location | None = Field(
        default=None,
        description="File (or systemd credential) of API keys, one a line; # begins a comment; "
        "read again when it changes. Clients over TCP must send one as Authorization: Bearer. "
        "Unset, none is needed.",
        examples=["/etc/hotreload/api-keys"],
    )
    admin_keys_file: Location | None = Field(
        default=None,
        description="The same for keys that open the admin routes over TCP, too. Unset, these "
        "are closed there.",
        examples=["/etc/hotreload/admin-keys"],
    )
    cors_origins: tuple[Annotated[str, AfterValidator(origin)], ...] = Field(
        default=(),
        description="Origins of sites whose pages may ask the model and read the answers. Unset, "
        "none.",
        examples=[["https://chat.example.com"]],
    )
    access_log: bool = Field(
        default=False,
        description="Log each answered request: client, path, code, seconds, generation, "
        "X-Request-Id, tokens.",
    )
    update_roots: tuple[Location, ...] = Field(
        default=(),
        description="Folders beside those of [source] from which a checkpoint may be ordered. "
        "They are not followed.",
        examples=[["/mnt/trainer"]],
    )
    unknown_fields: Literal["refuse", "ignore"] = Field(
        default=DEFAULT_LIMITS.unknown_fields,
        description="What to do with an unknown field in a request to the model. A known one "
        "that asks for what is not served is refused either way.",
    )
    tool_call_parser: str | None = Field(
        default=None,
        description="The sglang-jax parser of tool calls; unset, the one that fits the model's "
        "chat template, if known.",
        examples=["qwen25"],
    )
    workers: WorkerCount = Field(
        default="auto",
        description="Processes that handle HTTP beside the engine's. 0: none. auto: 0 on up to 4 "
        "processors, else one for each 8, 1 to 8.",
    )
    limits: LimitSettings = LimitSettings()


class MetricsSettings(SettingsTable):
    """Prometheus metrics."""

    address: Annotated[str, AfterValidator(lambda text: text and host_port(text, 9479))] = Field(
        default="127.0.0.1:9479",
        description="The host:port of the metrics; empty: on the unix socket alone.",
    )
    per_leaf: bool = Field(
        default=True, description="Export a checksum for each leaf of the weights."
    )
    max_leaves: AtLeastOne = Field(
        default=1000,
        description="Of how many leaves, at most, the checksum is exported; "
        "hotreload_leaf_checksums_left_out counts the others.",
    )
    expect_every: Deadline | None = Field(
        default=None,
        description="How often something new should go live, else the alert NothingNew fires. "
        "Unset, never.",
        examples=["6h"],
    )


class StateSettings(SettingsTable):
    """The state that survives a restart."""

    directory: Location = Field(
        default=Path("/var/lib/hotreload"),
        description="Folder of the state; the daemon must be able to write to it.",
    )


class LogSettings(SettingsTable):
    """The log on stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The lowest level that is written."
    )
    format: Literal["auto", "json", "console"] = Field(
        default="auto", description="auto is console on a terminal, else JSON lines."
    )


class Settings(SettingsTable):
    """Everything an operator can decide; `class_with` adds the tables of features."""

    engine: EngineSettings = EngineSettings()
    source: SourceSettings = SourceSettings()
    checks: CheckSettings = CheckSettings()
    reload: ReloadSettings = ReloadSettings()
    probe: tuple[ProbeSettings, ...] = ()
    server: ServerSettings = ServerSettings()
    metrics: MetricsSettings = MetricsSettings()
    state: StateSettings = StateSettings()
    log: LogSettings = LogSettings()

    def of[T](self, table: type[T]) -> T:
        """Return a feature's table by its class: its defaults where there are no settings of it."""
        return next((value for _, value in self if isinstance(value, table)), None) or table()

    def of_features(self) -> Iterator[tuple[str, SettingsOfFeature]]:
        """Yield the tables of features that the start asks for more than values."""
        yield from ((name, value) for name, value in self if isinstance(value, SettingsOfFeature))

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

    @model_validator(mode="after")
    def _one_address_each(self) -> Self:
        if self.server.tcp and self.server.tcp == self.metrics.address:
            raise ValueError(
                f"[server] tcp and [metrics] address are both {self.server.tcp}; change one"
            )
        return self

    def __reduce__(self) -> Any:
        """Have a worker make the class anew: pickles find none that a function made."""
        tables = {name: type(value) for name, value in self if name not in Settings.model_fields}
        return _made_again, (tuple(tables.items()), self.__getstate__())


def class_with(features: Iterable[HasSettings]) -> type[Settings]:
    """Return the class of all settings: ours, and the table of each feature."""
    return _with(tuple((each.name, each.settings) for each in features if each.settings))


@cache
def _with(tables: tuple[tuple[str, type[Any]], ...]) -> type[Settings]:
    fields: dict[str, Any] = {name: (table, table()) for name, table in tables}
    return create_model("Settings", __base__=Settings, __doc__=Settings.__doc__, **fields)


def _made_again(tables: tuple[tuple[str, type[Any]], ...], state: dict[Any, Any]) -> Settings:
    made = _with(tables).model_construct()
    made.__setstate__(state)
    return made
