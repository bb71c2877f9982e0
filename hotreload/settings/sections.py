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
        description="Patterns of tensors that a checkpoint may hold though the engine loads "
        "none of them.",
        examples=[["*.rotary_emb.inv_freq"]],
    )
    dtype_change: Literal["reject", "cast"] = Field(
        default="reject", description="What to do when a tensor's dtype is not the served one."
    )
    nonfinite: Literal["reject", "allow"] = Field(
        default="reject", description="What to do when a checkpoint's weights hold NaN or Inf."
    )
    on_nonfinite_answers: Literal["alert", "rollback"] = Field(
        default="alert",
        description="What to do when the live weights make NaN of a client's prompt. Either way "
        "the answer is withheld and the KV pool scrubbed; `rollback` also rolls back and refuses "
        "the revision.",
    )
    max_drift: Annotated[Number, AfterValidator(_factor)] | None = Field(
        default=None,
        description="Refuse a checkpoint when a tensor's norm differs from the live one's by more "
        "than this factor.",
        examples=[10.0],
    )
    verify_live_every: Deadline | None = Field(
        default=None,
        description="How often the checksums of the live weights are computed anew and compared "
        "with what went live; unset, never. It waits for a moment without requests, at most as "
        "long again. A difference is an alarm: metric, event, log and status.",
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
        description="How long a request's body may be; a longer one is answered 413.",
    )
    bodies_bytes: AtLeastOne = Field(
        default=DEFAULT_LIMITS.bodies_bytes,
        description="How much memory the bodies of all requests under way, and what is made of "
        "them, may take; 64 KiB of each do not count. A request that needs more is answered 503.",
    )
    header_bytes: AtLeastOne = Field(
        default=DEFAULT_LIMITS.header_bytes,
        description="How long a request's headers may be; longer ones are answered 431.",
    )
    concurrent: AtLeastOne = Field(
        default=DEFAULT_LIMITS.concurrent,
        description="How many requests may be under way at a time; one more is answered 503.",
    )
    request_seconds: Deadline = Field(
        default=DEFAULT_LIMITS.request_seconds,
        description="How long a request may take; one that takes longer is ended.",
    )
    generation_seconds: Deadline = Field(
        default=DEFAULT_LIMITS.generation_seconds,
        description="How long a request with X-Hotreload-Min-Generation waits for that "
        "generation; after that it is answered 409.",
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
        description="The group whose members may use the admin routes, as root and the daemon's "
        "user may.",
        examples=["llm-admin"],
    )
    tcp: HostPort | None = Field(
        default=None,
        description="A host:port to listen on too; the admin routes ask for a key of "
        "`admin_keys_file` there.",
        examples=["127.0.0.1:8000"],
    )
    model_name: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:@/-]*$",
        description="What clients of /v1 call the model; unset, the name of [engine] model's "
        "folder.",
        examples=["qwen3"],
    )
    hosts: tuple[str, ...] = Field(
        default=(),
        description="Host names that browsers may use for this daemon, beside addresses, localhost "
        "and names without a dot. Other clients may use any name.",
        examples=[["llm.example.com"]],
    )
    api_keys_file: Location | None = Field(
        default=None,
        description="A file (or systemd credential) of API keys, one a line, # begins a comment; "
        "read anew when it changes. Who comes over TCP must send one of them as Authorization: "
        "Bearer; who comes by the socket need not. Unset, nobody need.",
        examples=["/etc/hotreload/api-keys"],
    )
    admin_keys_file: Location | None = Field(
        default=None,
        description="A file (or systemd credential) like api_keys_file: who sends one of its keys "
        "over TCP may use the admin routes, and all that an API key opens. Unset, nobody may over "
        "TCP; by the socket the kernel says who may.",
        examples=["/etc/hotreload/admin-keys"],
    )
    cors_origins: tuple[Annotated[str, AfterValidator(origin)], ...] = Field(
        default=(),
        description="Origins of the sites whose pages may ask the model and read the answers, by "
        "a browser of whoever may connect. Unset, no site's may.",
        examples=[["https://chat.example.com"]],
    )
    access_log: bool = Field(
        default=False,
        description="Write a line for each request that was answered: who asked for which path, "
        "its code, seconds, generation and X-Request-Id, and of an answer of the model its tokens.",
    )
    update_roots: tuple[Location, ...] = Field(
        default=(),
        description="Folders below which a checkpoint that is ordered may lie too, beside those of "
        "[source]: where trainers write. Nothing in them is followed.",
        examples=[["/mnt/trainer"]],
    )
    unknown_fields: Literal["refuse", "ignore"] = Field(
        default=DEFAULT_LIMITS.unknown_fields,
        description="What becomes of a field that nobody knows, in a request to the model. A field "
        "that is known, and asks for what this server does not have, is refused either way.",
    )
    tool_call_parser: str | None = Field(
        default=None,
        description="Which of sglang-jax's parsers reads the calls of tools in an answer; unset, "
        "the one for what the model's chat template tells it to write, if that is known.",
        examples=["qwen25"],
    )
    workers: WorkerCount = Field(
        default="auto",
        description="Processes that answer HTTP for the model beside the engine's: reading, "
        "checking, JSON and streams leave it the processor time for tokens. 0, none: it answers "
        "by itself, as it does while they start. auto is 0 on up to 4 processors, else one for "
        "each 8 of them, 1 to 8.",
    )
    limits: LimitSettings = LimitSettings()


class MetricsSettings(SettingsTable):
    """Prometheus metrics."""

    address: Annotated[str, AfterValidator(lambda text: text and host_port(text, 9479))] = Field(
        default="127.0.0.1:9479",
        description="The host:port where Prometheus reads the metrics; if empty, they are on the "
        "unix socket alone.",
    )
    per_leaf: bool = Field(
        default=True, description="Export a checksum for each leaf of the weights."
    )
    max_leaves: AtLeastOne = Field(
        default=1000,
        description="Of how many leaves the checksum is exported at most, the first ones; the log "
        "and hotreload_leaf_checksums_left_out say when there are more.",
    )
    expect_every: Deadline | None = Field(
        default=None,
        description="How often something new is expected to go live: when nothing has for so long, "
        "the alert NothingNew says so. Unset, nobody is told.",
        examples=["6h"],
    )


class StateSettings(SettingsTable):
    """The state that survives a restart."""

    directory: Location = Field(
        default=Path("/var/lib/hotreload"),
        description="Folder of the state file; the daemon must be able to write to it.",
    )


class LogSettings(SettingsTable):
    """The log on stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The lowest level that is written."
    )
    format: Literal["auto", "json", "console"] = Field(
        default="auto", description="auto is console on a terminal and JSON lines elsewhere."
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
