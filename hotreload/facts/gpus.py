"""GPUs, to JAX and to XLA: what they are called, and the flags that an engine needs there.

Imports no JAX: the flags must be set before it starts.
"""

from collections.abc import Mapping
from pathlib import Path

CALLED = ("gpu", "cuda", "rocm")
"""Names of a GPU in JAX_PLATFORMS; of its devices JAX says the first."""
XLA_FLAGS = ("--xla_gpu_enable_triton_gemm=false", "--xla_gpu_autotune_level=0")
WHY = "XLA's autotuner ended an engine on an H100 (CUDA_ERROR_ILLEGAL_INSTRUCTION)"


def flags_to_add(device: str, environ: Mapping[str, str], dev: Path = Path("/dev")) -> list[str]:
    """List the flags that XLA needs where a GPU may compute, but for those that XLA_FLAGS names.

    `device` is a setting's; where that and JAX_PLATFORMS say nothing, a node in `dev` does.
    """
    named = device if device != "auto" else environ.get("JAX_PLATFORMS", "").partition(",")[0]
    if named not in CALLED and (named or not any(dev.glob("nvidia[0-9]*"))):
        return []
    given = {flag.partition("=")[0] for flag in environ.get("XLA_FLAGS", "").split()}
    return [flag for flag in XLA_FLAGS if flag.partition("=")[0] not in given]
