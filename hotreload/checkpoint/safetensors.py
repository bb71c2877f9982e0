"""Reads a safetensors header: an 8-byte length, JSON, data. Believes nothing it reads.

Stricter than upstream: lower caps, no duplicate names, nothing allocated from a length field
before the file's own size has vouched for it.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotreload.checkpoint.file_reader import OpenFile
from hotreload.checkpoint.findings import Finding, Unfit, limit_findings, quote, shown_name
from hotreload.checkpoint.known_names import (
    LONGEST_DISGUISE,
    MAX_SHARDS,
    STORED_DTYPES,
    find_disguise,
)
from hotreload.figures import size as size_words

MAX_HEADER = 16 * 2**20
MAX_TENSORS = 100_000
_MAX_RANK = 32
_LENGTH = 8
LONGEST_HEAD = _LENGTH + MAX_HEADER
"""The bytes at the beginning of a file that are read for its header, at most."""

SIZES: Mapping[str, int] = {name: size for name, (_, size) in STORED_DTYPES.items()}
"""Bytes an element of each dtype takes."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as the header describes it: its shape, its dtype and its place in the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """A sound header: its tensors, in the order of their bytes, tile the data."""

    tensors: tuple[StoredTensor, ...] = field(repr=False)
    data_start: int
    data_bytes: int
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def file_size(self) -> int:
        """The size that the file must have."""
        return self.data_start + self.data_bytes

    def place_of(self, tensor: StoredTensor) -> tuple[int, int]:
        """Return the offsets in the file at which a tensor begins and ends."""
        return self.data_start + tensor.begin, self.data_start + tensor.end


def read_header(file: OpenFile) -> Header:
    """Read the file's header; Unfit if it is malformed. The data's size is not compared."""
    size = file.identity.size
    if size < _LENGTH:
        words = f"is {size} bytes, a safetensors file begins with an 8-byte length"
        raise _bad(file.name, words, code="truncated", unfinished=True)
    length = int.from_bytes(file.read(_LENGTH, 0), "little")
    if length > MAX_HEADER:
        if what := find_disguise(file.read(min(size, LONGEST_DISGUISE), 0)):
            raise _bad(file.name, what)
        limit = f"no more than {MAX_HEADER} are accepted"
        raise _bad(file.name, f"its header claims {length} bytes, {limit}")
    if _LENGTH + length > size:
        words = f"is {size} bytes, its header alone takes {_LENGTH + length}"
        raise _bad(file.name, words, code="truncated", unfinished=True)
    return parse_header(file.read(length, _LENGTH), file.name)


def size_finding(header: Header, file: OpenFile) -> Unfit | None:
    """Make the finding that header and data do not add up to the file's size; else None."""
    size, due = file.identity.size, header.file_size
    if size < due:
        words = f"is {size_words(size)} ({size} bytes), header and data take {due}"
        return _bad(file.name, words, code="truncated", unfinished=True)
    if size > due:
        return _bad(file.name, f"has {size - due} bytes behind the last tensor")
    return None


def parse_header(raw: bytes, name: str) -> Header:
    """Parse a header from JSON bytes; Unfit, which names the file `name`, if it is malformed."""
    entries = _parse_json(raw, name)
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise _bad(name, "its __metadata__ must map text to text")
    tensors = [_parse_tensor(tensor, entry, name) for tensor, entry in entries.items()]
    tensors.sort(key=lambda tensor: (tensor.begin, tensor.end))
    return Header(tuple(tensors), _LENGTH + len(raw), _check_tiling(tensors, name), metadata)


def _parse_json(raw: bytes, name: str) -> dict[str, Any]:
    if raw[:1] != b"{":
        # A file written into place by parts begins with zeros where the JSON will be.
        raise _bad(name, "its header is no JSON object", unfinished=True)
    objects = 0

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal objects
        objects += 1
        if objects > MAX_TENSORS + 2:  # the header itself and its __metadata__ are objects too
            raise _bad(name, f"its header holds more than {MAX_TENSORS} tensors")
        return _without_duplicates(pairs, name)

    try:
        entries = json.loads(raw.decode(), object_pairs_hook=unique, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        why = "nested too deep" if isinstance(error, RecursionError) else str(error)[:120]
        words = f"its header is not valid JSON ({why})"
        raise _bad(name, words, unfinished=True) from error
    return dict(entries)


def _without_duplicates(pairs: list[tuple[str, Any]], name: str) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) == len(pairs):
        return unique
    [(twice, _)] = Counter(key for key, _ in pairs).most_common(1)
    words = f"{quote(twice)} appears twice in the header"
    raise _bad(name, words, code="duplicate", tensor=twice)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


def _parse_tensor(tensor: str, entry: Any, name: str) -> StoredTensor:
    def bad(words: str, code: str = "bad_header") -> Unfit:
        return _bad(name, f"tensor {quote(tensor)} {words}", code=code, tensor=tensor)

    if "\0" in tensor:
        raise bad("has a NUL in its name")
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise bad("must state dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    width = SIZES.get(dtype) if isinstance(dtype, str) else None
    if width is None:
        raise bad(f"has the unknown dtype {quote(str(dtype))}", "dtype")
    if not isinstance(shape, list) or len(shape) > _MAX_RANK or not all(map(_is_count, shape)):
        raise bad(f"has no valid shape: up to {_MAX_RANK} sizes from 0 to 2^63 - 1")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_count, offsets)):
        raise bad("has no valid data_offsets: [begin, end]")
    begin, end = offsets
    due = math.prod(shape) * width
    if end - begin != due:
        takes = f"is {shape} of {dtype}, which takes {due} bytes"
        raise bad(f"{takes}; its offsets span {end - begin}")
    return StoredTensor(tensor, dtype, tuple(shape), begin, end)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63  # bool is an int, and no size


def _check_tiling(tensors: list[StoredTensor], name: str) -> int:
    """Return the data's size; Unfit unless the tensors cover it without hole or overlap."""
    reached = 0
    for tensor in tensors:
        if tensor.begin != reached:
            what = "a hole before it" if tensor.begin > reached else "an overlap with another"
            words = f"tensor {quote(tensor.name)} begins at {tensor.begin}, expected {reached}"
            raise _bad(name, f"{words}: {what}", tensor=tensor.name)
        reached = tensor.end
    return reached


def _bad(
    name: str,
    words: str,
    *,
    code: str = "bad_header",
    tensor: str | None = None,
    unfinished: bool = False,
) -> Unfit:
    finding = Finding(code, f"{shown_name(name)}: {words}", name, tensor)
    return Unfit(finding, unfinished=unfinished)


# --- the index: which shard holds which tensor ----------------------------------------------

_NUMBERED = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")


def parse_weight_map(index: Any, name: str) -> tuple[dict[str, str] | None, tuple[Finding, ...]]:
    """Parse the index's map from tensors to files; entries with findings are left out."""
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        words = f"{name}: has no weight_map from tensors to files"
        return None, (Finding("index", words, name),)
    shards = {repr(shard): shard for shard in weight_map.values()}
    findings = limit_findings(
        Finding("index", f"{name}: names {quote(str(shard))}, which is no plain file name", name)
        for shard in shards.values()
        if not _is_plain(shard)
    )
    return {tensor: shard for tensor, shard in weight_map.items() if _is_plain(shard)}, findings


def _is_plain(name: Any) -> bool:
    """Return whether a file name stays in its folder and in one line of the log."""
    if not isinstance(name, str) or not name.isprintable() or len(name.encode()) > 255:
        return False
    return "/" not in name and "\\" not in name and name.endswith(".safetensors")


def numbered_shards(present: Sequence[str]) -> set[str] | None:
    """List the shards present, with those that their own numbering (2 of 4) announces.

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
