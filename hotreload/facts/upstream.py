"""Facts of sglang-jax and JAX, for parts that may not import them: both read flags as they start.

The engine's arguments that hotreload decides itself: `check-config` and the start of the engine
both refuse them in these words. The flags that XLA needs on a device. The versions of packages.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def version_of(package: str) -> str:
    """Return the version of a package; an empty string where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


OWNED_ARGS = {
    "model_path": "use [engine] model",
    "device": "use [engine] device",
    "tp_size": "use [engine] tp",
    "dtype": "use [engine] dtype",
    "load_format": "use [engine] boot",
    "device_indexes": "use [engine] replicas",
    "tool_call_parser": "use [server] tool_call_parser",
    "nnodes": "use [engine] nnodes",
    "node_rank": "use [engine] node_rank",
    "dist_init_addr": "use [engine] dist_init_addr",
    "enable_single_process": "hotreload decides it",
    "skip_tokenizer_init": "hotreload decides it",
    "stream_output": "hotreload decides it: each piece of an answer holds all of it",
    "multimodal": "hotreload decides it",
    "is_embedding": "hotreload decides it",
    "enable_engine_loop_run_forever_daemon": "hotreload decides it",
}
"""Each such argument, and what the operator can do instead, or why it cannot be set."""


def refused_args(names: Iterable[str]) -> list[str]:
    """A sentence for each argument that may not be given."""
    owned = sorted(OWNED_ARGS.keys() & set(names))
    return [f"{name} cannot be set: {OWNED_ARGS[name]}" for name in owned]


# --- Devices --------------------------------------------------------------------------------------

GPU_NAMES = ("gpu", "cuda", "rocm")
"""Names of a GPU in JAX_PLATFORMS; of its devices JAX says the first."""
XLA_FLAGS: Mapping[str, Sequence[str]] = {
    "gpu": ("--xla_gpu_enable_triton_gemm=false", "--xla_gpu_autotune_level=0"),
    "cpu": ("--xla_cpu_enable_concurrency_optimized_scheduler=false",),
}
WHY_XLA_FLAGS = {
    "gpu": "XLA's autotuner ended an engine on an H100 (CUDA_ERROR_ILLEGAL_INSTRUCTION)",
    "cpu": "XLA would hold float32 copies of all weights at a time, and steps would take longer",
}


def computes_on(device: str, environ: Mapping[str, str], dev: Path = Path("/dev")) -> str:
    """Return the platform that will compute, as far as it is known before JAX looks, or "".

    `device` is a setting's; where that and JAX_PLATFORMS say nothing, a node in `dev` does.
    """
    named = device if device != "auto" else environ.get("JAX_PLATFORMS", "").partition(",")[0]
    if named:
        return "gpu" if named in GPU_NAMES else named
    if any(dev.glob("nvidia[0-9]*")):
        return "gpu"
    has_tpu = any(dev.glob("accel[0-9]*")) or any(dev.glob("vfio/[0-9]*"))
    return "" if has_tpu else "cpu"


def flags_to_add(platform: str, environ: Mapping[str, str]) -> list[str]:
    """List the flags that XLA needs on a platform, but for those that XLA_FLAGS names."""
    given = {flag.partition("=")[0] for flag in environ.get("XLA_FLAGS", "").split()}
    return [flag for flag in XLA_FLAGS.get(platform, ()) if flag.partition("=")[0] not in given]
