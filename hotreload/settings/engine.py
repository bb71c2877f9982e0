"""The settings of the engine: what it starts with, and where its devices are."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from hotreload.facts.owned_args import refused_args
from hotreload.settings.kinds import (
    AtLeastOne,
    CompileCachePlace,
    Deadline,
    Location,
    MeetingPoint,
    ThreadCount,
)
from hotreload.settings.tables import SettingsTable

COMPILED = "compiled"
"""The folder in [state] directory where `compile_cache = "auto"` keeps programs."""


class EngineSettings(SettingsTable):
    """The engine and what it starts with."""

    model: Location | None = Field(
        default=None,
        description="Folder of the model: config, tokenizer, and the first weights. Needed, but "
        "for a hub, whose first commit can be the model.",
        examples=["/srv/models/qwen3"],
    )
    boot: Literal["last-good", "model", "dummy"] = Field(
        default="last-good",
        description="What to start from: the last generation that went live (else the newest "
        "good checkpoint; the model only before any was live), always the model, or random "
        "weights.",
    )
    when_gone: Literal["older", "wait"] = Field(
        default="older",
        description="If the files of what was live last are gone: serve an older checkpoint and "
        "report it, or wait for them.",
    )
    device: Literal["auto", "cpu", "tpu", "gpu"] = Field(
        default="auto",
        description="Device of the engine; auto takes JAX_PLATFORMS, else what JAX finds. It "
        "must be the first that JAX_PLATFORMS names.",
    )
    tp: AtLeastOne = Field(default=1, description="How many devices share one copy of the weights.")
    replicas: Annotated[int, Field(strict=True, ge=1, le=64)] = Field(
        default=1,
        description="How many engines to run, each on tp devices of its own. A checkpoint goes "
        "live on one after the other.",
    )
    nnodes: Annotated[int, Field(strict=True, ge=1, le=64)] = Field(
        default=1,
        description="How many hosts share one engine; each runs a daemon, and rank 0 serves.",
    )
    node_rank: Annotated[int, Field(strict=True, ge=0, le=63)] = Field(
        default=0,
        description="The rank of this host; 0 serves.",
    )
    dist_init_addr: MeetingPoint | None = Field(
        default=None,
        description="Address and port of rank 0, the same on all hosts. Rank 0 listens on the "
        "fifth and sixth port after it, too.",
        examples=["10.0.0.1:29500"],
    )
    join_secret_file: Location | None = Field(
        default=None,
        description="File of a secret of 32 characters or more, the same on all hosts; only its "
        "owner may read it. A systemd credential of its name comes first. Needed off loopback.",
        examples=["/etc/hotreload/join-secret"],
    )
    insecure_join: bool = Field(
        default=False,
        strict=True,
        description="Let hosts meet without a secret: anyone who reaches the ports can then run "
        "programs on every host.",
    )
    join_timeout: Deadline = Field(
        default=300.0,
        description="How long a start waits for the other hosts, before it ends to be started "
        "again.",
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        default="auto",
        description="The dtype to compute in; auto takes that of the model's config.",
    )
    loader: Literal["auto", "upstream"] = Field(
        default="auto",
        description="What loads checkpoints: auto takes our own loader once its result equals "
        "the engine's, bit by bit, and the engine's for what ours does not understand; upstream "
        "is the engine's.",
    )
    staging_threads: ThreadCount = Field(
        default=1,
        description="Threads of our own loader; auto is as many as the machine can spare, at "
        "most 8.",
    )
    staging_priority: Literal["idle", "normal"] = Field(
        default="idle",
        description="Processor time of these threads, and of checks: idle is what others leave "
        "(niceness 10); if that starves them, threads of niceness 5, then 0, join. normal is an "
        "equal share.",
    )
    staging_starve: Deadline = Field(
        default=2.0,
        description="How long idle threads may get less than a quarter of a processor before "
        "others join.",
    )
    warm_batches: Annotated[int, Field(strict=True, ge=0, le=512)] = Field(
        default=32,
        description="Compile ahead for batches of 1, 2, 4 … up to this many requests, and for "
        "longer prompts, beside the requests. Until then the engine takes in what the compiled "
        "sizes hold. 0: the first batch of each size waits for the compiler.",
    )
    warm_timeout: Deadline = Field(
        default=120.0,
        description="How long that may take: then no further size is begun.",
    )
    compile_cache: CompileCachePlace = Field(
        default="auto",
        description="Where compiled programs are kept: auto is compiled in [state] directory; "
        "off; or a folder of your own that only the daemon's user can write, since the daemon "
        "runs what lies there. JAX_COMPILATION_CACHE_DIR comes first.",
    )
    args: Mapping[str, Any] = Field(
        default_factory=dict,
        description="sglang-jax's server arguments, handed on as they are.",
        examples=[{"context_length": 4096, "mem_fraction_static": 0.8}],
    )

    @field_validator("args")
    @classmethod
    def _args_are_not_ours(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if refused := refused_args(value):
            raise ValueError("; ".join(refused))
        return value
