"""`python -m tests.hosts.keeping`: the command, as a rank that keeps what it compiles.

JAX has the first rank alone write its cache, which the others may share. On CPUs they cannot: each
rank's programs have names of their own there, and all but the first's were compiled in each life.
"""

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
from jax._src import compiler, distributed

from hotreload import cli


class AsTheFirst:
    """What JAX knows of the ranks, but for who this one is."""

    process_id = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(distributed.global_state, name)


def keep_what_is_compiled() -> None:
    """Have JAX write this rank's programs into its cache, whichever rank it is.

    All of them, also before upstream says so.
    """
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)  # type: ignore[no-untyped-call]
    alike: Any = SimpleNamespace(global_state=AsTheFirst())
    compiler.distributed = alike  # type: ignore[attr-defined]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb."""
    keep_what_is_compiled()
    return cli.main(argv)


if __name__ == "__main__":
    sys.exit(main())
