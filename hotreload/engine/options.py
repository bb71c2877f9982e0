"""The settings of the engine, and the options that an engine is started with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from hotreload.behaviour import Question
from hotreload.core.rules import USUAL_RULES
from hotreload.engine.compile_cache import CompileCache
from hotreload.facts.upstream import refused_args
from hotreload.quiet import QUIET
from hotreload.setting import (
    After,
    AtLeastOne,
    Bounds,
    CompileCachePlace,
    Deadline,
    Location,
    MeetingPoint,
    ThreadCount,
    setting,
)
from hotreload.types import Revision, Shares

COMPILED = "compiled"
"""The folder in [state] directory where `compile_cache = "auto"` keeps programs."""
RANDOM_WEIGHTS = Revision("random", "random weights")
"""The name of what an engine answers by that started without a checkpoint."""


def _not_ours(value: Mapping[str, Any]) -> Mapping[str, Any]:
    if refused := refused_args(value):
        raise ValueError("; ".join(refused))
    return value


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The engine and what it starts with."""

    model: Location | None = setting(
        None,
        "Folder of the model: config, tokenizer, and the first weights. Needed, but for a hub, "
        "whose first commit can be the model.",
        example="/srv/models/qwen3",
    )
    boot: Literal["last-good", "model", "dummy"] = setting(
        "last-good",
        "What to start from: the last generation that went live (else the newest good checkpoint; "
        "the model only before any was live), always the model, or random weights.",
    )
    when_gone: Literal["older", "wait"] = setting(
        "older",
        "If the files of what was live last are gone: serve an older checkpoint and report it, or "
        "wait for them.",
    )
    device: Literal["auto", "cpu", "tpu", "gpu"] = setting(
        "auto",
        "Device of the engine; auto takes JAX_PLATFORMS, else what JAX finds. It must be the "
        "first that JAX_PLATFORMS names.",
    )
    tp: AtLeastOne = setting(1, "How many devices share one copy of the weights.")
    replicas: Annotated[int, Bounds(least=1, most=64, is_strict=True)] = setting(
        1,
        "How many engines to run, each on tp devices of its own. A checkpoint goes live on one "
        "after the other.",
    )
    ranks: Literal["given", "auto"] = setting(
        "given",
        "What says the rank, the number of hosts and rank 0's address: the next three settings; "
        "or auto, the environment that Kubernetes, a TPU VM or SkyPilot makes, which these three "
        "must not contradict.",
    )
    nnodes: Annotated[int, Bounds(least=1, most=64, is_strict=True)] = setting(
        1, "How many hosts share one engine; each runs a daemon, and rank 0 serves."
    )
    node_rank: Annotated[int, Bounds(least=0, most=63, is_strict=True)] = setting(
        0, "The rank of this host; 0 serves."
    )
    dist_init_addr: MeetingPoint | None = setting(
        None,
        "Address and port of rank 0, the same on all hosts. Rank 0 listens on the fifth and sixth "
        "port after it, too.",
        example="10.0.0.1:29500",
    )
    join_secret_file: Location | None = setting(
        None,
        "File of a secret of 32 characters or more, the same on all hosts; only its owner may "
        "read it. A systemd credential of its name comes first. Needed off loopback.",
        example="/etc/hotreload/join-secret",
    )
    insecure_join: Annotated[bool, Bounds(is_strict=True)] = setting(
        False,
        "Let hosts meet without a secret: anyone who reaches the ports can then run programs on "
        "every host.",
    )
    join_timeout: Deadline = setting(
        300.0, "How long a start waits for the other hosts, before it ends to be started again."
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = setting(
        "auto", "The dtype to compute in; auto takes that of the model's config."
    )
    loader: Literal["auto", "upstream"] = setting(
        "auto",
        "What loads checkpoints: auto takes our own loader once its result equals the engine's, "
        "bit by bit, and the engine's for what ours does not understand; upstream is the engine's.",
    )
    staging_threads: ThreadCount = setting(
        1, "Threads of our own loader; auto is as many as the machine can spare, at most 8."
    )
    staging_priority: Literal["idle", "normal"] = setting(
        QUIET.priority,
        "Processor time of these threads, and of checks: idle is what others leave (niceness 10); "
        "if that starves them, threads of niceness 5, then 0, join. normal is an equal share.",
    )
    staging_starve: Deadline = setting(
        QUIET.starve_seconds,
        "How long idle threads may get less than a quarter of a processor before others join.",
    )
    warm_batches: Annotated[int, Bounds(least=0, most=512, is_strict=True)] = setting(
        32,
        "Compile ahead for batches of 1, 2, 4 … up to this many requests, and for longer prompts, "
        "beside the requests. Until then the engine takes in what the compiled sizes hold. 0: the "
        "first batch of each size waits for the compiler.",
    )
    warm_timeout: Deadline = setting(
        120.0, "How long that may take: then no further size is begun."
    )
    compile_cache: CompileCachePlace = setting(
        "auto",
        "Where compiled programs are kept: auto is compiled in [state] directory; off; or a "
        "folder of your own that only the daemon's user can write, since the daemon runs what "
        "lies there. JAX_COMPILATION_CACHE_DIR comes first.",
    )
    args: Annotated[Mapping[str, Any], After(_not_ours)] = setting(
        {},
        "sglang-jax's server arguments, handed on as they are.",
        example={"context_length": 4096, "mem_fraction_static": 0.8},
    )


@dataclass(frozen=True, slots=True)
class UnseenOptions:
    """Questions that weights are asked apart from clients, beside the probes."""

    compares: bool = False
    """True to be ready to compare new weights with the live ones, which compiles for that."""
    corpus: Sequence[Question] = ()
    """Questions that they are asked beside those that are built in."""
    hears: bool = False
    """True to have room to compare them by what clients asked, too."""
    candidate_tokens: int = 0
    """Tokens for which there is to be room where they answer as a candidate; 0 for none."""


PROBES_ALONE = UnseenOptions()


@dataclass(frozen=True, slots=True)
class EngineOptions(EngineSettings):
    """The settings of [engine] with what the start and other tables decide of one engine."""

    model: Path
    """A folder with a config, a tokenizer, and weights unless `load_format` is dummy."""
    load_format: str = "auto"
    tool_call_parser: str | None = None
    """Which of upstream's reads the calls of tools, if the operator says so."""
    first_device: int = 0
    programs: CompileCache | None = None
    """The place of compiled programs; None where the process decides that, as for any JAX."""
    shares: Shares = USUAL_RULES.shares
    """Parts of their turns in which weights compute that are proven, or that fade out."""
    sets: Sequence[int] = (2,)
    """Numbers of sets of weights that the devices are to hold: the first that fits."""
    unseen: UnseenOptions = PROBES_ALONE
    """Questions beside the probes, for which there must be room."""

    @property
    def at_once(self) -> int:
        """Number of requests of the steps that a start compiles for first.

        Smaller batches are padded to them until theirs are compiled.
        """
        return self.warm_batches or 1
