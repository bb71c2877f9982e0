"""Which shards a checkpoint has: by its index, or by the numbers in its files' names."""

import re
from collections.abc import Sequence
from typing import Any

from hotreload.checkpoint.file_names import MAX_SHARDS
from hotreload.checkpoint.findings import Finding, bounded, quoted

_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")


def parse_weight_map(index: Any, name: str) -> tuple[dict[str, str] | None, tuple[Finding, ...]]:
    """The index's map from tensors to files, without the entries that the findings are about."""
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        words = f"{name}: has no weight_map from tensors to files"
        return None, (Finding("index", words, name),)
    shards = {repr(shard): shard for shard in weight_map.values()}
    findings = bounded(
        Finding("index", f"{name}: names {quoted(str(shard))}, which is no plain file name", name)
        for shard in shards.values()
        if not _is_plain(shard)
    )
    return {tensor: shard for tensor, shard in weight_map.items() if _is_plain(shard)}, findings


def _is_plain(name: Any) -> bool:
    """A file name that cannot lead out of its folder, nor break a line of the log."""
    if not isinstance(name, str) or not name.isprintable() or len(name.encode()) > 255:
        return False
    return "/" not in name and "\\" not in name and name.endswith(".safetensors")


def numbered_shards(present: Sequence[str]) -> set[str] | None:
    """The shards present, with those that their own numbering (2 of 4) says are to come.

    None when the numbering speaks of more than MAX_SHARDS: making their names would fill memory.
    """
    series = {(each[1], each[3]) for each in map(_NUMBERED.fullmatch, present) if each}
    if sum(int(of) for _, of in series) > MAX_SHARDS:
        return None
    to_come = (
        f"{stem}-{number:05d}-of-{of}.safetensors"
        for stem, of in series
        for number in range(1, int(of) + 1)
    )
    return {*present, *to_come}
