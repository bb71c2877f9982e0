"""The answers of SGLang's routes, in the form of SGLang 0.5.23.

Values that hotreload does not measure are 0, SGLang's own default.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Literal, TypedDict

from hotreload import __version__
from hotreload.json_fields import Fields, GenerationFields, generation_fields
from hotreload.picture.picture import ReplicaFigures
from hotreload.types import Generation

EngineFacts = Mapping[str, Any]
"""The engine's description of itself, under upstream's names."""

SECTIONS = ("core", "memory", "spec", "lora", "disagg", "queues", "all")
"""The sections of a load report that a client may select."""
FLUSHED = (
    "Cache flushed.\n"
    "Flushed items: {tokens}\n"
    "Please check backend logs for more details. (What running or waiting requests use is kept "
    "until they end; no other weights ever read it.)\n"
)
_NOT_MEASURED = {
    "num_waiting_uncached_tokens": 0,
    "num_prealloc_ready_tokens": 0,
    "gen_throughput": 0.0,
    "cache_hit_rate": 0.0,
    "total_prefill_uncached_tokens": 0,
    "total_prefill_busy_us": 0,
    "decode_moments": None,
}


class ServedFields(TypedDict):
    """The names of the model."""

    model_path: str
    served_model_name: str
    tokenizer_path: str


class ModelInfoFields(ServedFields, GenerationFields):
    """The model and its weights."""

    disaggregation_mode: Literal["null"]
    is_generation: Literal[True]
    model_type: str | None
    architectures: list[str] | None


class ServerInfoFields(ServedFields, GenerationFields):
    """The server's settings."""

    disaggregation_mode: Literal["null"]
    tp_size: int
    pp_size: int
    dp_size: int
    ep_size: int
    num_gpus: int
    version: str | None
    internal_states: list[Fields]


class BusyFields(TypedDict):
    """The requests of one engine."""

    dp_rank: int
    num_running_reqs: int
    num_waiting_reqs: int


class ShortLoadFields(BusyFields):
    """The load of one engine, in short."""

    num_reqs: int
    num_tokens: int
    num_pending_tokens: int
    ts_tic: float


class LoadFields(BusyFields):
    """The load of one engine."""

    max_total_num_tokens: int
    token_usage: float


class LoadsFields(TypedDict):
    """The full load report."""

    timestamp: str
    version: str | None
    loads: list[LoadFields]


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The names by which clients know the model."""

    name: str = "model"
    path: str = "model"
    """The path of the first weights, which never changes: routers read it once."""

    @property
    def fields(self) -> ServedFields:
        """The names, with which every document begins."""
        return {
            "model_path": self.path,
            "served_model_name": self.name,
            "tokenizer_path": self.path,
        }


def model_info(model: ServedModel, facts: EngineFacts, live: Generation) -> Fields:
    """Return the description of the model and the version of its weights."""
    return {
        **model.fields,
        "is_generation": True,
        "preferred_sampling_params": None,
        "load_format": facts.get("load_format"),
        "reasoning_parser": None,
        "tool_call_parser": None,
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": facts.get("model_type"),
        "architectures": facts.get("architectures"),
        **generation_fields(live),
    }


def server_info(
    model: ServedModel, facts: EngineFacts, live: Generation, engines: Sequence[ReplicaFigures]
) -> Fields:
    """Return the settings, with the live version of the weights and not the first one."""
    tp, most = facts.get("tp_size", 1), facts.get("max_running_requests")
    return {
        **facts,
        **model.fields,
        "tp_size": tp,
        "pp_size": 1,
        "dp_size": len(engines),
        "ep_size": facts.get("ep_size", 1),
        "num_gpus": tp * len(engines),
        "load_balance_method": "total_requests",
        "disaggregation_mode": "null",
        "disaggregation_bootstrap_port": None,
        "encoder_only": False,
        "max_total_num_tokens": facts.get("max_total_tokens"),
        "version": facts.get("engine_version"),
        "hotreload_version": __version__,
        **generation_fields(live),
        "internal_states": [
            {
                "weight_version": live.weight_version,
                "effective_max_running_requests_per_dp": most,
                "memory_usage": {
                    "weight": _weight_gb(reading),
                    "token_capacity": facts.get("max_total_tokens"),
                },
            }
            for reading in engines
        ],
    }


def loads(
    engines: Sequence[ReplicaFigures],
    facts: EngineFacts,
    *,
    include: Collection[str] = ("all",),
    rank: int | None = None,
) -> Fields:
    """Return the full load report of all engines, or of the one of this rank."""
    now = time.time()
    wanted = [
        _load(at, reading, facts, include, now)
        for at, reading in enumerate(engines)
        if rank in (None, at)
    ]
    return {
        "timestamp": datetime.fromtimestamp(now, UTC).isoformat(),
        "version": facts.get("engine_version"),
        "accelerator": None,
        "num_accelerators": facts.get("tp_size", 1),
        "loads": wanted,
    }


def named_checksums(leaves: Mapping[str, int]) -> dict[str, str]:
    """Return each leaf's checksum in hexadecimal digits, in the order of the names."""
    return {name: f"{leaves[name]:016x}" for name in sorted(leaves)}


def checksums(leaves: Mapping[str, int], facts: EngineFacts) -> Fields:
    """Return the checksum of each leaf, and the total as SGLang computes it."""
    named = named_checksums(leaves)
    whole = sha256()
    for name, checksum in named.items():
        whole.update(name.encode() + checksum.encode())
    tp = facts.get("tp_size", 1)
    rank = {"tp_rank": 0, "tp_size": tp, "dp_rank": 0, "dp_size": 1, "pp_rank": 0, "pp_size": 1}
    of_all = whole.hexdigest()
    ranks = {
        "checksums": named,
        "per_gpu_checksum": of_all,
        "parallelism_info": [{"role": "target", **rank, "rank": 0, "size": tp}],
    }
    return {"ranks": [ranks], "per_engine_checksum": sha256(of_all.encode()).hexdigest()}


def count_requests(reading: ReplicaFigures) -> tuple[int, int, int]:
    """Return the numbers of running and of waiting requests, and of the tokens that they hold.

    The running ones are never 0 while a request is inside the gate, and always 0 once all have
    left: the scheduler updates its own figures only a few times a second, and trainers wait for 0.
    """
    load = reading.load
    if not reading.inside:
        return 0, reading.held, 0
    running = max(load.running, reading.inside - load.waiting)
    return running, load.waiting + reading.held, load.kv_requests


def short_load(rank: int, reading: ReplicaFigures) -> ShortLoadFields:
    """Return the load of the engine of this rank, in short."""
    running, waiting, tokens = count_requests(reading)
    return {
        "dp_rank": rank,
        "num_reqs": running + waiting,
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "num_tokens": tokens,
        "num_pending_tokens": 0,
        "ts_tic": time.perf_counter(),
    }


def _load(
    rank: int, reading: ReplicaFigures, facts: EngineFacts, include: Collection[str], now: float
) -> Fields:
    running, waiting, used = count_requests(reading)
    capacity, most = facts.get("max_total_tokens", 0), facts.get("max_running_requests", 0)
    fields = {
        "timestamp": now,
        "dp_rank": rank,
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "num_used_tokens": used,
        "num_total_tokens": used,
        "num_active_tokens": used,
        "max_total_num_tokens": capacity,
        "max_running_requests": most,
        "token_usage": used / capacity if capacity else 0.0,
        "utilization": running / most if most else 0.0,
        **_NOT_MEASURED,
    }
    sections = {
        "memory": {
            "weight_gb": _weight_gb(reading),
            "kv_cache_gb": 0.0,
            "graph_gb": 0.0,
            "token_capacity": capacity,
        },
        "queues": {
            "waiting": waiting,
            "grammar": 0,
            "paused": 0,
            "retracted": 0,
            "prealloc_ready": 0,
        },
    }
    return fields | {name: sections[name] for name in sections if {name, "all"} & set(include)}


def _weight_gb(reading: ReplicaFigures) -> float:
    return round(reading.weights.get("live", 0) / 2**30, 3)
