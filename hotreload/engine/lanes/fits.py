"""Says why an engine can have no lanes, by looking at its objects and not at its version."""

from typing import Any

from hotreload.engine.lanes.kinds import find_kind

KNOWN_POOLS = {"token_to_kv_pool"}


def why_no_lanes(scheduler: Any) -> str | None:
    """Say why two generations cannot answer side by side in this engine; None when they can."""
    args, runner = scheduler.server_args, scheduler.tp_worker.get_model_runner()
    told = (
        (getattr(args, "speculative_algorithm", None), "it decodes speculatively"),
        (getattr(args, "disaggregation_mode", None) not in (None, "null"), "it is disaggregated"),
        (getattr(scheduler, "pd", None), "it is disaggregated"),
        (getattr(args, "enable_lora", None), "it serves LoRA adapters"),
        (getattr(scheduler, "dp_size", 1) > 1, "it has more than one data rank (dp_size)"),
        (getattr(scheduler, "is_hybrid", False), "its KV pool has several parts"),
        (_has_other_pools(scheduler, runner), "its KV pool is of a kind that is not known here"),
        (find_kind(scheduler) is None, "its scheduler keeps its state in an unknown place"),
    )
    return next((why for is_so, why in told if is_so), None)


def _has_other_pools(scheduler: Any, runner: Any) -> bool:
    pools = getattr(runner, "memory_pools", None)
    tree = type(scheduler.tree_cache).__name__
    hicache = getattr(scheduler.tree_cache, "hicache_enabled", False)
    return (
        (pools is not None and pools._pools.keys() != KNOWN_POOLS)
        or not _is_plain(runner.token_to_kv_pool)
        or tree not in ("RadixCache", "ChunkCache")
        or bool(hicache)
    )


def _is_plain(pool: Any) -> bool:
    """Say if all it holds is one list of buffers, with a row for each token or page."""
    buffers = getattr(pool, "kv_buffer", None)
    if not isinstance(buffers, list) or not buffers:
        return False
    tokens, page = pool.size + pool.page_size, pool.page_size
    return all(buffer.shape[0] in (tokens, tokens // page) for buffer in buffers)
