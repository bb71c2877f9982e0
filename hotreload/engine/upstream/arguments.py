"""Arguments of upstream's Engine: what the operator decided, and what embedding it asks for."""

import dataclasses
import logging
from typing import Any

from hotreload.engine.options import EngineOptions
from hotreload.engine.source_text import unknown_arguments
from hotreload.errors import ConfigError
from hotreload.hosts.upstream.joining import Ranks
from hotreload.owned_args import refused_args

LOG_LEVEL = logging.WARNING
"""Upstream's."""


def arguments_of(
    server_args: type, options: EngineOptions, platform: str, ranks: Ranks | None = None
) -> dict[str, Any]:
    """Arguments for upstream's Engine; ConfigError names one that the operator may not give.

    `platform` is that of the devices that were found.
    """
    known = {each.name for each in dataclasses.fields(server_args)}
    for words in refused_args(options.args):
        raise ConfigError(f"[engine.args] {words}")
    for words in unknown_arguments(options.args, known):
        raise ConfigError(f"[engine.args] {words}")
    given = {
        "model_path": str(options.model),
        "device": platform,
        "tp_size": options.tp,
        "dtype": options.dtype,
        "load_format": options.load_format,
        "device_indexes": list(range(options.first_device, options.first_device + options.tp)),
        "enable_single_process": True,
        "skip_server_warmup": True,
        "log_level": logging.getLevelName(LOG_LEVEL).lower(),
        **(_over(ranks) if ranks is not None else {}),
        **(_on_cpu() if platform == "cpu" else {}),
        **options.args,
    }
    return {name: value for name, value in given.items() if name in known}


def _over(ranks: Ranks) -> dict[str, Any]:
    """The engine lies on all devices of all ranks: none of them is chosen."""
    found = {"nnodes": ranks.count, "node_rank": ranks.own, "dist_init_addr": ranks.address}
    return {**found, "device_indexes": None}


def _on_cpu() -> dict[str, Any]:
    """Attention kernels and compiling ahead are for accelerators.

    Upstream pads a prompt to its chunk size, 4096 tokens: on a CPU that takes minutes.
    """
    return {
        "chunked_prefill_size": 512,
        "max_running_requests": 32,
        "max_total_tokens": 16384,
        "attention_backend": "native",
        "disable_jax_precompile": True,
        "disable_precompile": True,
        "mem_fraction_static": 0.1,
    }
