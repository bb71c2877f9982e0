"""Keeps XLA's remarks out of the log where the CPU computes.

For each program that comes from the compilation cache it writes two lines at level ERROR, though
nothing is wrong. What does go wrong is raised, and logged by us.
"""

import os
from collections.abc import MutableMapping

from hotreload.cli.ops.machine import accelerators

XLA_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
FATAL_ONLY = "3"


def keep_remarks_out(device: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Have XLA write fatal faults alone; to be called before jax is imported.

    Not where an accelerator computes, whose faults XLA may only log, nor where a level is set.
    """
    named = device if device != "auto" else environ.get("JAX_PLATFORMS", "").partition(",")[0]
    if named == "cpu" or not (named or accelerators()):
        environ.setdefault(XLA_LOG_LEVEL, FATAL_ONLY)
