"""Runs upstream's own server: `python -m tests.bench.upstreams_server`, with its arguments.

0.0.2 serves on the JAX that it is pinned to here with our work-rounds alone, as it does for us. Its
processes are spawned: each imports this file first.
"""

import runpy

from hotreload.engine.upstream import build

build._ready_upstream()

if __name__ == "__main__":
    runpy.run_module("sgl_jax.launch_server", run_name="__main__")
