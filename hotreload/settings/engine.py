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
        description="Folder of the model: its config and tokenizer, and the weights that "
        "answer until a checkpoint goes live. Needed to serve from a folder; with a hub the first "
        "commit that is downloaded can be the model.",
        examples=["/srv/models/qwen3"],
    )
    boot: Literal["last-good", "model", "dummy"] = Field(
        default="last-good",
        description="What to start from: the last generation that went live (else the newest "
        "good checkpoint; the model, as long as none was live), always the model, or random "
        "weights of its shape.",
    )
    when_gone: Literal["older", "wait"] = Field(
        default="older",
        description="What a start does when the files of what was live last are gone: have an "
        "older checkpoint answer in its place, which is told, or wait for them. The model itself "
        "answers only until a checkpoint was live, or with boot = 'model'.",
    )
    device: Literal["auto", "cpu", "tpu", "gpu"] = Field(
        default="auto",
        description="Where to run the engine; auto takes what JAX_PLATFORMS says, else what JAX "
        "finds. A device other than the first that JAX_PLATFORMS names is refused.",
    )
    tp: AtLeastOne = Field(default=1, description="How many devices share one copy of the weights.")
    replicas: Annotated[int, Field(strict=True, ge=1, le=64)] = Field(
        default=1,
        description="How many engines to run, each on devices of its own (tp each). A request goes "
        "to the least busy one; a checkpoint is read once and goes live on one after the other. "
        "While one serves, one that is lost is started again beside it.",
    )
    nnodes: Annotated[int, Field(strict=True, ge=1, le=64)] = Field(
        default=1,
        description="Over how many hosts the devices of the engine lie, the same number on each; "
        "each host runs a daemon. The first serves, follows the source and decides; the others "
        "follow it.",
    )
    node_rank: Annotated[int, Field(strict=True, ge=0, le=63)] = Field(
        default=0,
        description="Which of them this host is, its rank: 0 is the first, which serves.",
    )
    dist_init_addr: MeetingPoint | None = Field(
        default=None,
        description="Where the hosts meet: the address of rank 0 and a port, the same on all of "
        "them. Rank 0 listens at this address alone, on this port and on the fifth and the sixth "
        "after it. Needed with several hosts.",
        examples=["10.0.0.1:29500"],
    )
    join_secret_file: Location | None = Field(
        default=None,
        description="A file that holds a secret of at least 32 characters, the same on all hosts: "
        "they believe and serve each other alone. Nobody but its owner may read it; a systemd "
        "credential of the same name comes first. Needed where dist_init_addr is not on loopback.",
        examples=["/etc/hotreload/join-secret"],
    )
    insecure_join: bool = Field(
        default=False,
        strict=True,
        description="Whether the hosts may meet without a secret: whoever reaches the ports of "
        "dist_init_addr can then run programs on every host.",
    )
    join_timeout: Deadline = Field(
        default=300.0,
        description="How long a start waits for the other hosts; after that the daemon ends, to "
        "be started again.",
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        default="auto",
        description="The dtype to compute in; auto takes the one that the model's config names.",
    )
    loader: Literal["auto", "upstream"] = Field(
        default="auto",
        description="What loads checkpoints beside the live weights: auto takes our own loader "
        "once it has made what the engine's makes, bit by bit, and the engine's for what ours "
        "does not understand; upstream is always the engine's.",
    )
    staging_threads: ThreadCount = Field(
        default=1,
        description="How many threads our own loader reads and places tensors in; auto is as many "
        "as the machine has processors to spare, at most 8.",
    )
    staging_priority: Literal["idle", "normal"] = Field(
        default="idle",
        description="What processor time these threads get, and those that name and check: idle "
        "is what others leave over, and a tenth of a processor that they want (niceness 10); where "
        "that is less than a quarter, threads of niceness 5, at last 0, join. normal is a share "
        "like any other's.",
    )
    staging_starve: Deadline = Field(
        default=2.0,
        description="How long threads of priority idle may want a processor, and have less than a "
        "quarter of one, before others join.",
    )
    warm_batches: Annotated[int, Field(strict=True, ge=0, le=512)] = Field(
        default=32,
        description="For batches of how many requests is compiled before they come: 1, 2, 4 … up "
        "to this, and longer prompts; beside those who are served, or before anybody is let in "
        "where the engine must be asked for it. Meanwhile it takes in what the compiled sizes "
        "hold. With 0 each first batch of a size waits for the compiler, and all beside it.",
    )
    warm_timeout: Deadline = Field(
        default=120.0,
        description="How long that may take: after this no further size is begun.",
    )
    compile_cache: CompileCachePlace = Field(
        default="auto",
        description="Where compiled programs are kept for the next start: auto is compiled in "
        "[state] directory, off keeps none, a path is a folder of your own. Who can write there "
        "runs code in the daemon, so a folder that others may use is refused. Where "
        "JAX_COMPILATION_CACHE_DIR is set, that decides.",
    )
    args: Mapping[str, Any] = Field(
        default_factory=dict,
        description="sglang-jax's server arguments, handed to the engine as they are.",
        examples=[{"context_length": 4096, "mem_fraction_static": 0.8}],
    )

    @field_validator("args")
    @classmethod
    def _args_are_not_ours(cls, value: Mapping[str, Any]) -> Mapping[str, Any]:
        if refused := refused_args(value):
            raise ValueError("; ".join(refused))
        return value
