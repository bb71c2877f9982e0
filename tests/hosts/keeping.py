"""`python -m tests.hosts.keeping`: the command, as a rank that keeps what it compiles.

JAX has the first rank alone write its cache, which the others may share. On CPUs they cannot: each
rank's programs have names of their own there, and all but the first's were compiled in each life.
"""

import sys
from types import SimpleNamespace
from typing import Any

from jax._src import compiler, distributed


class AsTheFirst:
    """What JAX knows of the ranks, but for who this one is."""

    process_id = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(distributed.global_state, name)


def keep_what_is_compiled() -> None:
    """Have JAX write this rank's programs into its cache, whichever rank it is."""
    alike: Any = SimpleNamespace(global_state=AsTheFirst())
    compiler.distributed = alike  # type: ignore[attr-defined]


if __name__ == "__main__":
    from hotreload.cli import main

    keep_what_is_compiled()
    sys.exit(main())
