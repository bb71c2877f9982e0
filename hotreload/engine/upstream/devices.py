"""Finds the devices an engine runs on: those that the setting and JAX_PLATFORMS name."""

from typing import Any

from hotreload.errors import ConfigError, DeviceUnavailable


def find_devices(device: str, tp: int, first: int, engines: int = 1) -> list[Any]:
    """`tp` devices of this machine, from number `first` on; there must be some for all engines.

    `device` is auto or a platform's name. DeviceUnavailable when that platform is absent or busy:
    the CPU never stands in for an accelerator.
    """
    import jax

    _choose_platform(device)
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
    """Tell JAX which platform to use; once JAX has looked for devices this changes nothing.

    A TPU gets the CPU beside it: 0.0.2's loader puts weights there first.
    """
    import jax

    # This holds JAX_PLATFORMS, until a program sets something else.
    named: str = getattr(jax.config, "jax_platforms", None) or ""
    chosen = named.partition(",")[0]
    if chosen and device not in ("auto", chosen):
        raise ConfigError(
            f"[engine] device = {device!r}, but JAX_PLATFORMS = {named!r}: make them the same, "
            "or leave one out"
        )
    wanted = chosen if device == "auto" else device
    if wanted in ("cpu", "tpu") and named in ("", wanted):
        both = "tpu,cpu" if wanted == "tpu" else wanted
        jax.config.update("jax_platforms", both)  # type: ignore[no-untyped-call]
