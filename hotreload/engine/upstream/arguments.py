"""Arguments of upstream's Engine, and the devices it runs on.

Both are what the operator decided, and what embedding the engine asks for; the devices are those
that the setting and JAX_PLATFORMS name.
"""

import dataclasses
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

from hotreload.engine.memory_plan import CPU_TOKENS, plan_memory
from hotreload.engine.options import EngineOptions
from hotreload.engine.versions import unknown_arguments
from hotreload.errors import ConfigError, DeviceUnavailable
from hotreload.facts.upstream import (
    GPU_NAMES,
    WHY_XLA_FLAGS,
    computes_on,
    flags_to_add,
    refused_args,
)

log = logging.getLogger("hotreload.engine")

LOG_LEVEL = logging.WARNING
"""Upstream's."""

ON_DEVICE: Mapping[str, Mapping[str, Any]] = {
    # Upstream pads a prompt to its chunk size, 4096 tokens: on a CPU that takes minutes.
    "cpu": {
        "chunked_prefill_size": 512,
        "max_running_requests": 32,
        "attention_backend": "native",
        "disable_jax_precompile": True,
        "disable_precompile": True,
        "max_total_tokens": CPU_TOKENS,
    },
    "gpu": {"attention_backend": "native", "disable_precompile": True},
}
"""Values in place of upstream's own, whose attention kernels are for TPUs alone."""


def arguments_of(
    server_args: type,
    options: EngineOptions,
    platform: str,
    over_processes: Mapping[str, Any] | None = None,
    fraction: float | None = None,
) -> dict[str, Any]:
    """Arguments for upstream's Engine; ConfigError names one that the operator may not give.

    `platform` is that of the devices that were found. With `over_processes` the engine lies on all
    devices of several processes: none of them is chosen. `fraction` is the planned share of a
    device for weights and KV pool.
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
        "tool_call_parser": options.tool_call_parser,
        "device_indexes": list(range(options.first_device, options.first_device + options.tp)),
        "enable_single_process": True,
        "skip_server_warmup": True,
        "log_level": logging.getLevelName(LOG_LEVEL).lower(),
        **({**over_processes, "device_indexes": None} if over_processes else {}),
        **({"mem_fraction_static": fraction} if fraction else {}),
        **ON_DEVICE.get(platform, {}),
        **options.args,
    }
    return {name: value for name, value in given.items() if name in known}


def plan_for(options: EngineOptions, devices: Sequence[Any]) -> float | None:
    """Plan the memory of these devices, log the plan, and return the share for weights and pool.

    None where the devices say no size, or are too small: upstream decides.
    """
    limits = [(each.memory_stats() or {}).get("bytes_limit") for each in devices]
    there = min((limit for limit in limits if limit), default=None)
    plan = plan_memory(
        options.model,
        tp=options.tp,
        dtype=options.dtype,
        args=options.args,
        sets=options.sets,
        there=there,
        is_cpu=devices[0].platform == "cpu",
    )
    if plan is None:
        return None
    planned: dict[str, Any] = {"weights": plan.weights, "sets": plan.sets, "kv_pool": plan.pool}
    planned |= {"to_compute_in": plan.work, "there": plan.there, "fraction": plan.fraction}
    log.info("engine.memory_planned", extra=planned)
    if why := plan.why_not():
        log.warning("engine.memory_short", extra={"why": why})
        return None
    return plan.argument


def check_batches(given: Mapping[str, Any], *, are_in_buckets: bool) -> None:
    """ConfigError if more may be answered at once than the largest batch holds.

    An sglang-jax whose batches are in buckets is lost by the first that is larger: its buckets end
    with the tokens of a chunk.
    """
    rows, chunk = given.get("max_running_requests"), given.get("chunked_prefill_size")
    if are_in_buckets and rows and chunk and rows > chunk > 0:
        raise ConfigError(
            f"[engine.args] max_running_requests = {rows} is more than chunked_prefill_size = "
            f"{chunk}, and this sglang-jax would end with the first batch of more than {chunk}: "
            "raise the one, or lower the other"
        )


def check_pages(given: Mapping[str, Any], *, native_knows_pages: bool) -> None:
    """ConfigError if the answers of a batch would be wrong.

    0.0.2's native attention reads the KV pool as if each page held one token: with larger pages all
    requests of a batch but the first get the answers of other tokens.
    """
    page = given.get("page_size") or 1
    if page > 1 and given.get("attention_backend") == "native" and not native_knows_pages:
        raise ConfigError(
            f"[engine.args] page_size = {page}: with attention_backend = 'native' this sglang-jax "
            "answers wrongly as soon as two requests are answered together; leave page_size out, "
            "or install sglang-jax 0.1.0rc0"
        )


def find_devices(device: str, tp: int, first: int, engines: int = 1) -> list[Any]:
    """`tp` devices of this machine, from number `first` on; there must be some for all engines.

    `device` is auto or a platform's name. DeviceUnavailable when that platform is absent or busy:
    the CPU never stands in for an accelerator.
    """
    import jax

    _choose_platform(device)
    _set_xla_flags(device)
    try:
        found = jax.devices()
    except RuntimeError as fault:
        why = str(fault).strip().partition("\n")[0]
        kind = "" if device == "auto" else f"{device} "
        words = f"no {kind}device can be used: {why} (`hotreload doctor` shows who holds it)"
        raise DeviceUnavailable(words) from fault
    platform = found[0].platform
    if device not in ("auto", platform):
        raise DeviceUnavailable(f"[engine] device = {device!r}, but JAX finds only {platform}")
    needed = max(first + tp, engines * tp)
    if len(found) < needed:
        several = f" and replicas = {engines} need" if engines > 1 else " needs"
        several = f" from device {first} on{several}" if first and engines == 1 else several
        raise ConfigError(
            f"[engine] tp = {tp}{several} {needed} devices, this machine has {len(found)} "
            f"({platform}); on CPU, XLA_FLAGS=--xla_force_host_platform_device_count={needed} "
            "makes more"
        )
    return found[first : first + tp]


def _choose_platform(device: str) -> None:
    """Set the platform that JAX uses; once JAX has looked for devices this changes nothing.

    A TPU gets the CPU beside it: 0.0.2's loader puts weights there first.
    """
    import jax

    # This holds JAX_PLATFORMS, until a program sets something else.
    named: str = getattr(jax.config, "jax_platforms", None) or ""
    chosen = named.partition(",")[0]
    if chosen and device not in ("auto", "gpu" if chosen in GPU_NAMES else chosen):
        raise ConfigError(
            f"[engine] device = {device!r}, but JAX_PLATFORMS = {named!r}: make them the same, "
            "or leave one out"
        )
    wanted = chosen if device == "auto" else device
    if wanted in ("cpu", "tpu") and named in ("", wanted):
        both = "tpu,cpu" if wanted == "tpu" else wanted
        jax.config.update("jax_platforms", both)  # type: ignore[no-untyped-call]


def _set_xla_flags(device: str) -> None:
    """Set what XLA needs on a device; it reads them once, when JAX first looks for devices."""
    platform = computes_on(device, os.environ)
    if flags := flags_to_add(platform, os.environ):
        os.environ["XLA_FLAGS"] = " ".join([*os.environ.get("XLA_FLAGS", "").split(), *flags])
        told = {"added": " ".join(flags), "why": WHY_XLA_FLAGS[platform]}
        log.info("engine.xla_flags", extra=told)
