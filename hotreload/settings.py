"""Every setting, default and limit, as frozen models; `config` reads them from TOML.

Looks at text alone: whether folders and ports exist is seen by those who open them.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from hotreload.settings_kinds import (
    Address,
    Count,
    Deadline,
    Location,
    Mode,
    Number,
    Seconds,
    Table,
    host_port,
    not_yet,
)
from hotreload.settings_source import SourceSettings

OWNED_ARGS = {
    "model_path": "[engine] model",
    "tp_size": "[engine] tp",
    "device": "[engine] device",
    "dtype": "[engine] dtype",
    "load_format": "[engine] boot",
}
"""Engine arguments that a setting of ours decides, and the setting."""


class EngineSettings(Table):
    """The engine and what it starts with."""

    model: Location | None = Field(
        default=None,
        description="Folder of the model: its config and tokenizer, and the weights that "
        "answer until a checkpoint goes live. Needed to serve, but not from a hub: there the "
        "first commit that is downloaded is the model.",
        examples=["/srv/models/qwen3"],
    )
    boot: Literal["last-good", "model", "dummy"] = Field(
        default="last-good",
        description="What to start from: the last generation that went live (else the newest "
        "good checkpoint, else the model), always the model, or random weights of its shape.",
    )
    device: Literal["auto", "cpu", "tpu"] = Field(
        default="auto",
        description="Where to run; auto is what JAX_PLATFORMS says, else what JAX finds. "
        "Another device than the first that JAX_PLATFORMS names is refused.",
    )
    tp: Count = Field(default=1, description="How many devices share one copy of the weights.")
    replicas: Count = Field(default=1, description="How many engines; only one in this version.")
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        default="auto",
        description="What weights are computed in; auto is what the model's config says.",
    )
    args: Mapping[str, Any] = Field(
        default_factory=dict,
        description="Handed to the engine as they are: sglang-jax's server arguments.",
        examples=[{"context_length": 4096, "mem_fraction_static": 0.8}],
    )

    @field_validator("replicas")
    @classmethod
    def _one_replica(cls, value: int) -> int:
        if value != 1:
            raise ValueError(f"{value} is not in this version yet; leave it at 1")
        return value

    @field_validator("args")
    @classmethod
    def _args_are_not_ours(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if owned := OWNED_ARGS.keys() & value:
            raise ValueError("; ".join(f"{n} is set by {OWNED_ARGS[n]}" for n in sorted(owned)))
        return value


class CheckSettings(Table):
    """What a checkpoint must be like to be loaded at all."""

    extra_tensors: tuple[str, ...] = Field(
        default=(),
        description="Patterns of tensors that a checkpoint may hold though the engine loads "
        "none of them.",
        examples=[["*.rotary_emb.inv_freq"]],
    )
    dtype_change: Literal["reject", "cast"] = Field(
        default="reject", description="When a tensor's dtype is not the served one."
    )
    nonfinite: Literal["reject", "allow"] = Field(
        default="reject", description="When weights hold NaN or Inf."
    )
    max_drift: Annotated[Number, Field(gt=0)] | None = Field(
        default=None,
        description="Refuse when a tensor's norm differs from the live one's by more than this "
        "factor.",
        examples=[10.0],
    )


class ReloadSettings(Table):
    """How a checkpoint goes live."""

    fetch_timeout: Deadline = Field(
        default=3600.0, description="How long the source may take to lay the files down."
    )
    validate_timeout: Deadline = Field(
        default=1800.0, description="How long checking a checkpoint may take; each byte is read."
    )
    stage_timeout: Deadline = Field(
        default=1800.0,
        description="How long copying and loading it may take. What takes longer than one of "
        "these three is given up and tried again later.",
    )
    drain_timeout: Deadline = Field(
        default=30.0, description="How long requests under way may take to end before a swap."
    )
    on_drain_timeout: Literal["postpone", "abort", "replay"] = Field(
        default="postpone",
        description="When they do not: try the swap later and wait longer each time, abort them, "
        "or abort them and let those that have sent nothing yet run again on the new weights.",
    )
    while_closed: Literal["hold", "refuse"] = Field(
        default="hold", description="Requests that arrive during a swap wait, or get 503 at once."
    )
    max_held: Annotated[int, Field(strict=True, ge=0)] = Field(
        default=1024, description="How many may wait; the rest get 503 with Retry-After."
    )
    probe_timeout: Deadline = Field(
        default=30.0, description="How long all probes together may take; then the swap is undone."
    )
    min_interval: Seconds = Field(
        default=0.0, description="After a swap, leave the source's next wish alone for so long."
    )
    keep_previous: Literal["device", "host", "none"] = Field(
        default="device", description="Where the generation before stays for a rollback."
    )
    memory: Annotated[Literal["double"], not_yet("host", "auto", now="double")] = Field(
        default="double", description="New weights are made whole beside the live ones."
    )

    @model_validator(mode="after")
    def _replays_may_wait(self) -> Self:
        if self.on_drain_timeout == "replay" and self.while_closed == "refuse":
            raise ValueError(
                "on_drain_timeout = 'replay' needs while_closed = 'hold': what is replayed arrives "
                "while the gate is closed"
            )
        return self


class ProbeSettings(Table):
    """A prompt the new weights must answer well, or they are rolled back.

    Repeat the table for more. Without expectations any answer will do. Without probes a
    built-in one asks for an answer that is not one token for ever.
    """

    prompt: str = Field(min_length=1, description="What to ask.", examples=["2 + 2 ="])
    max_new_tokens: Count = Field(default=32, description="How long the answer may be.")
    contains: str | None = Field(
        default=None, description="The answer holds this text.", examples=["4"], min_length=1
    )
    regex: str | None = Field(
        default=None, description="This is found in the answer.", examples=[r"\b4\b"], min_length=1
    )
    equals: str | None = Field(
        default=None, description="The answer is this text.", examples=[" 4"]
    )
    min_mean_logprob: Annotated[Number, Field(le=0)] | None = Field(
        default=None,
        description="The mean log-probability of the answer's tokens.",
        examples=[-4.0],
    )
    max_repeat: Count | None = Field(
        default=None, description="How often one token may come in a row.", examples=[8]
    )

    @field_validator("regex")
    @classmethod
    def _compiles(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except re.error as error:
            raise ValueError(f"{value!r} is no regular expression: {error}") from error
        return value


class Limits(Table):
    """What one client may ask of the server."""

    body_bytes: Count = Field(default=8 * 2**20, description="A longer body is answered 413.")
    header_bytes: Count = Field(default=64 * 2**10, description="Longer headers are answered 431.")
    concurrent: Count = Field(default=2048, description="More requests at a time are answered 503.")
    request_seconds: Deadline = Field(
        default=600.0, description="A request that takes longer ends."
    )
    generation_seconds: Deadline = Field(
        default=30.0,
        description="How long a request waits for the generation it asks for by "
        "X-Hotreload-Min-Generation; then 409.",
    )
    batch: Count = Field(default=256, description="How many prompts one request may hold.")


class ServerSettings(Table):
    """The HTTP API."""

    socket: Location = Field(
        default=Path("/run/hotreload/hotreload.sock"), description="The unix socket's path."
    )
    mode: Mode = Field(
        default=0o660, description="Who may connect to it, as a file mode in quotes."
    )
    group: str | None = Field(
        default=None, description="The group that owns it, else the daemon's.", examples=["llm"]
    )
    admin_group: str | None = Field(
        default=None,
        description="Its members may use the admin routes, as root and the daemon's user do.",
        examples=["llm-admin"],
    )
    tcp: Address | None = Field(
        default=None,
        description="Listen here too, without the admin routes.",
        examples=["127.0.0.1:8000"],
    )
    model_name: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:@/-]*$",
        description="What clients of /v1 call the model; else the name of [engine] model's folder.",
        examples=["qwen3"],
    )
    hosts: tuple[str, ...] = Field(
        default=(),
        description="Names browsers may use for this daemon, beside addresses, localhost and "
        "names without a dot. Other clients may use any.",
        examples=[["llm.example.com"]],
    )
    limits: Limits = Limits()


class MetricsSettings(Table):
    """Prometheus metrics."""

    address: Annotated[str, AfterValidator(lambda text: text and host_port(text))] = Field(
        default="127.0.0.1:9479", description="Where to be scraped; empty for only on the socket."
    )
    per_leaf: bool = Field(
        default=True, description="Export a checksum for each leaf of the weights."
    )


class StateSettings(Table):
    """What survives a restart."""

    directory: Location = Field(
        default=Path("/var/lib/hotreload"), description="Folder of the state file, writable by us."
    )


class LogSettings(Table):
    """What is written to stderr."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least that is written."
    )
    format: Literal["auto", "json", "console"] = Field(
        default="auto", description="auto is console on a terminal and JSON lines elsewhere."
    )


class Settings(Table):
    """Everything an operator can decide."""

    engine: EngineSettings = EngineSettings()
    source: SourceSettings = SourceSettings()
    checks: CheckSettings = CheckSettings()
    reload: ReloadSettings = ReloadSettings()
    probe: tuple[ProbeSettings, ...] = ()
    server: ServerSettings = ServerSettings()
    metrics: MetricsSettings = MetricsSettings()
    state: StateSettings = StateSettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _one_address_each(self) -> Self:
        if self.server.tcp and self.server.tcp == self.metrics.address:
            raise ValueError(
                f"[server] tcp and [metrics] address are both {self.server.tcp}; change one"
            )
        return self
