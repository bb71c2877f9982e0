"""Turns tensors into safetensors bytes, whole or in shards, whatever their values are."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import ml_dtypes
import numpy as np

from hotreload.checkpoint.known_names import SINGLE
from hotreload.tiny.weights import Arrays, TensorArray

_DTYPES = {
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(np.float16): "F16",
    np.dtype(np.float32): "F32",
}

MARK = ("made_by", "hotreload tiny")
"""The mark in the header of each weight file; a checkpoint that is trained and saved loses it."""
LONGEST_HEADER = 2**20


def encode(tensors: Arrays) -> bytes:
    """Return one safetensors file."""
    entries, start = [], 0
    for name, tensor in tensors.items():
        entries.append((name, _entry(tensor, start)))
        start += tensor.nbytes
    data = b"".join(tensor.tobytes() for tensor in tensors.values())
    return encode_header([("__metadata__", dict((("format", "pt"), MARK))), *entries]) + data


def encode_header(entries: Sequence[tuple[str, Mapping[str, object]]]) -> bytes:
    """Return the header's bytes; `entries` are pairs, since a damaged header may repeat a name."""
    fields = ",".join(f"{json.dumps(name)}:{json.dumps(entry)}" for name, entry in entries)
    text = f"{{{fields}}}".encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def is_marked(file: Path) -> bool:
    """True if this is a weight file of a tiny checkpoint, spoiled or not."""
    if not file.is_file():
        return False
    with suppress(OSError, ValueError, RecursionError), file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(min(length, LONGEST_HEADER)))
        metadata = header.get("__metadata__") if isinstance(header, dict) else None
        return isinstance(metadata, dict) and MARK in metadata.items()
    return False


def split(tensors: Arrays, count: int) -> dict[str, dict[str, TensorArray]]:
    """Return the tensors by file name, in `count` files of about the same size."""
    if not 1 <= count <= len(tensors):
        raise ValueError(f"{count} shards: choose from 1 to {len(tensors)}, the number of tensors")
    if count == 1:
        return {SINGLE: dict(tensors)}
    shards: list[dict[str, TensorArray]] = [{} for _ in range(count)]
    for name, shard in zip(tensors, _assign(tensors, count), strict=True):
        shards[shard][name] = tensors[name]
    return {f"model-{i:05}-of-{count:05}.safetensors": s for i, s in enumerate(shards, start=1)}


def _assign(tensors: Arrays, count: int) -> list[int]:
    """Return each tensor's shard, chosen by its middle byte; no shard is skipped or left empty."""
    total, start, shards = sum(t.nbytes for t in tensors.values()), 0, [0]
    for i, tensor in enumerate(tensors.values()):
        by_size = (2 * start + tensor.nbytes) * count // (2 * total)
        needed = count - (len(tensors) - i)
        shards.append(min(max(by_size, needed, shards[-1]), shards[-1] + (i > 0)))
        start += tensor.nbytes
    return shards[1:]


def _entry(tensor: TensorArray, start: int) -> dict[str, object]:
    return {
        "dtype": _DTYPES[tensor.dtype],
        "shape": list(tensor.shape),
        "data_offsets": [start, start + tensor.nbytes],
    }
