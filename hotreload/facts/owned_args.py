"""Which of the engine's arguments hotreload decides itself, so that [engine.args] may not.

`check-config` and the start of the engine both refuse them in these words.
"""

from collections.abc import Iterable

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
