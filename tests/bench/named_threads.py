"""`python -m tests.bench.named_threads`: the command, whose threads the kernel knows by name.

So what each of them takes can be read from outside, where looking costs the process nothing.
"""

import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

LONGEST = 15
"""Characters that the kernel keeps of a thread's name."""


def name_threads() -> None:
    """Have each thread that begins from now on tell the kernel its name."""
    run = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def named(self: Any) -> None:
        # Upstream's have no names but their functions', as in Thread-3 (forward_thread_func).
        does = getattr(self._target, "func", self._target)
        name = getattr(does, "__name__", "") if self.name.startswith("Thread-") else self.name
        with suppress(OSError):
            Path("/proc/thread-self/comm").write_text(name[:LONGEST])
        run(self)

    threading.Thread._bootstrap_inner = named  # type: ignore[attr-defined]


if __name__ == "__main__":
    name_threads()
    from hotreload.cli import main

    sys.exit(main())
