"""Keeps XLA's remarks out of the log of a daemon on a CPU.

XLA writes two lines at level ERROR for each program from the compilation cache, though nothing is
wrong. Real faults are raised, and the daemon logs them.
"""

import os
from collections.abc import MutableMapping

from hotreload.cli.ops.machine import accelerators

XLA_LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
FATAL_ONLY = "3"


def keep_remarks_out(device: str, environ: MutableMapping[str, str] = os.environ) -> None:
    """Set XLA's log to fatal faults alone; call it before jax is imported.

    Nothing changes with an accelerator, whose faults XLA may only log, or if a level is set.
    """
    named = device if device != "auto" else environ.get("JAX_PLATFORMS", "").partition(",")[0]
    if named == "cpu" or not (named or accelerators()):
        environ.setdefault(XLA_LOG_LEVEL, FATAL_ONLY)
