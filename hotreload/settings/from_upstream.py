"""The arguments of sglang-jax's own server, as settings of ours.

An argument becomes a setting, goes on to the engine, does nothing (with a note), or is refused.
The defaults of upstream's server are defaults here, too.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotreload.errors import ConfigError
from hotreload.settings.credentials import SHORTEST_KEY
from hotreload.settings.given import GivenValue, SettingPath
from hotreload.settings.sections import MODEL_NAME

BY_DEFAULT = "hotreload launch"
"""The origin of a value that no flag gave."""

HOST, PORT = "127.0.0.1", 30000
"""The address of a server of upstream by default."""

RENAMED: Mapping[str, SettingPath] = {
    "tp_size": ("engine", "tp"),
    "nnodes": ("engine", "nnodes"),
    "dist_timeout": ("engine", "join_timeout"),
    "tool_call_parser": ("server", "tool_call_parser"),
    "served_model_name": ("server", "model_name"),
    "device": ("engine", "device"),
    "dtype": ("engine", "dtype"),
    "log_level": ("log", "level"),
}
SAME_VALUE: Mapping[str, Mapping[str, str]] = {
    "device": {"cuda": "gpu"},
    "dtype": {"half": "float16", "float": "float32"},
    "log_level": {"warn": "warning", "critical": "error", "fatal": "error", "trace": "debug"},
}
"""Values of ours for those that upstream calls otherwise."""

ALREADY_SO = frozenset(
    {
        "skip_server_warmup",  # nothing answers before the warm-up of ours
        "enable_single_process",
        "enable_engine_loop_run_forever_daemon",
        "enable_metrics",
        "enable_cache_report",
    }
)
"""Flags for what hotreload does in any case."""

OF_THE_PLACE = frozenset(
    {"model_path", "revision", "download_dir", "host", "port", "api_key", "node_rank"}
    | {"dist_init_addr", "load_format", "device_indexes", "log_level_http", "log_requests"}
)
"""Arguments that mean something only with others; the code below takes each."""

BUCKETS = "the metrics have buckets of their own"
NO_EFFECT: Mapping[str, str] = {
    "warmups": "hotreload warms the engine up itself",
    "log_requests_level": "the log of requests never holds their texts",
    "crash_dump_folder": "no request is kept for the case of a crash",
    "file_storage_path": "no files are taken in",
    "bucket_time_to_first_token": BUCKETS,
    "bucket_inter_token_latency": BUCKETS,
    "bucket_e2e_request_latency": BUCKETS,
    "enable_request_time_stats_logging": "the log of requests has the seconds of each",
    "show_time_cost": "the metrics have the times",
    "kv_events_config": "no KV events are published",
    "reasoning_parser": "the reasoning stays in the text of an answer",
}
"""Arguments that change nothing here, and why."""

ONE_ENGINE = "one engine does prefill and decode"
TEXT_ONLY = "hotreload serves models that generate text"
REFUSED_FLAGS: Mapping[str, str] = {
    "multimodal": TEXT_ONLY,
    "is_embedding": TEXT_ONLY,
    "skip_tokenizer_init": "the probes need the tokenizer; leave it out",
    "stream_output": "each piece of a streamed answer holds all of it; leave it out",
    "preferred_sampling_params": "send them with each request; leave it out",
    "pd_disaggregation": f"{ONE_ENGINE}; leave it out",
    "disaggregation_mode": f"{ONE_ENGINE}; leave it out",
}
"""Arguments for answers that hotreload cannot give."""


@dataclass(frozen=True, slots=True)
class Launched:
    """The settings of a command of upstream."""

    model: str
    """A folder, or a repo on a hub."""
    name: str
    """Of the model, for clients of upstream's server."""
    revision: str | None
    downloads: Path | None
    """The folder of downloads."""
    api_key: str | None
    flags: list[GivenValue] = field(default_factory=list)
    defaults: list[GivenValue] = field(default_factory=list)
    """Values for all that no flag, file or variable sets."""
    notes: list[str] = field(default_factory=list)
    """A sentence for each flag that changes nothing here."""


def flag_of(name: str) -> str:
    """Return the flag that gives an argument."""
    return f"--{name.replace('_', '-')}"


def translate(given: Mapping[str, Any]) -> Launched:
    """Return the settings; one ConfigError lists every argument that cannot be served."""
    if faults := [f"{flag_of(name)}: {why}" for name, why in _find_refused(given)]:
        raise ConfigError.from_faults(faults)
    downloads = given.get("download_dir")
    launched = Launched(
        given["model_path"],
        given.get("served_model_name", given["model_path"]),
        given.get("revision"),
        Path(downloads) / "hotreload" if downloads else None,  # others' files lie in it, too
        given.get("api_key"),
    )
    launched.flags.extend(_flags(given))
    launched.defaults.extend(_defaults(given))
    without = {name: why for name in given if (why := why_no_effect(name))}
    launched.notes.extend(f"{flag_of(name)} does nothing: {why}" for name, why in without.items())
    launched.notes.sort()
    return launched


def why_no_effect(name: str) -> str | None:
    """Return why an argument changes nothing here; None where it does."""
    of_another = name.startswith("disaggregation_") and name not in REFUSED_FLAGS
    return ONE_ENGINE if of_another else NO_EFFECT.get(name)


def _find_refused(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, why in REFUSED_FLAGS.items():
        if given.get(name) not in (None, False, "", "null"):
            yield name, why
    if (format_ := given.get("load_format", "auto")) not in ("auto", "safetensors", "dummy"):
        yield "load_format", f"{format_}: checkpoints are safetensors; leave it out"
    first = list(range(given.get("tp_size", 1)))
    if given.get("device_indexes", first) != first:
        yield "device_indexes", f"the engine takes the first devices, {first}; leave it out"
    key = given.get("api_key", "k" * SHORTEST_KEY)
    if len(key) < SHORTEST_KEY:
        yield "api_key", f"give {SHORTEST_KEY} characters or more; `openssl rand -hex 32` makes one"
    elif not re.fullmatch(r"(?!#)[!-~]+", key):  # it goes into a file of keys
        yield "api_key", "give one word of printable ASCII that does not begin with #"


def _flags(given: Mapping[str, Any]) -> Iterator[GivenValue]:
    for name, value in given.items():
        known = SAME_VALUE.get(name, {})
        if name in RENAMED:
            text = value.lower() if name == "log_level" else value
            yield GivenValue(RENAMED[name], known.get(text, text), flag_of(name))
        elif name not in ALREADY_SO | OF_THE_PLACE | REFUSED_FLAGS.keys() and not why_no_effect(
            name
        ):
            yield GivenValue(("engine", "args", name), value, flag_of(name))
    if given.get("load_format") == "dummy":
        yield GivenValue(("engine", "boot"), "dummy", "--load-format")
    if given.get("nnodes", 1) > 1 or given.get("node_rank", 0) > 0:
        for name in ("node_rank", "dist_init_addr"):  # one host needs no others, whatever is said
            if name in given:
                yield GivenValue(("engine", name), given[name], flag_of(name))
    if "host" in given or "port" in given:
        yield GivenValue(
            ("server", "tcp"), _address(given), "--host" if "host" in given else "--port"
        )


def _defaults(given: Mapping[str, Any]) -> Iterator[GivenValue]:
    level = given.get("log_level_http") or given.get("log_level", "info")
    is_logged = bool(given.get("log_requests")) or level.lower() in ("info", "debug", "trace")
    values: dict[SettingPath, Any] = {
        ("server", "tcp"): _address(given),
        ("server", "access_log"): is_logged,
        ("metrics", "address"): "",  # they are on the serving port, as upstream's
    }
    if re.fullmatch(MODEL_NAME, given["model_path"]):
        values["server", "model_name"] = given["model_path"]
    for where, value in values.items():
        yield GivenValue(where, value, BY_DEFAULT)


def _address(given: Mapping[str, Any]) -> str:
    host, port = given.get("host", HOST), given.get("port", PORT)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
