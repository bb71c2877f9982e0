"""A bare `Engine` of upstream's that answers once: `python -m tests.bench.bare_engine MODEL ARGS`.

Only what it needs to run on a CPU at all is mended, and by our own parts. It prints a line when
it has answered.
"""

import json
import sys
from pathlib import Path

from hotreload.engine.options import EngineOptions
from hotreload.engine.upstream import arguments, build
from hotreload.facts.upstream import XLA_FLAGS

ONE_DEVICE = " ".join(("--xla_force_host_platform_device_count=1", *XLA_FLAGS["cpu"]))
"""XLA_FLAGS of what is measured: bare it takes all devices there are, and other benchmarks have
four. A bare one gets what we add, too: what differs is ours otherwise."""


def main(model: str, args: str) -> None:
    """Start it, and ask."""
    entry, server_args = build._ready_upstream()
    options = EngineOptions(Path(model), args=json.loads(args))
    engine = entry.Engine(**arguments.arguments_of(server_args, options, "cpu"))
    sampling = {"temperature": 0, "max_new_tokens": 1}
    answer = engine.generate(prompt="Who serves?", sampling_params=sampling)
    print(json.dumps(answer["output_ids"]), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
