"""Reads every byte of a file once: digests, sums, and values that must not be in weights.

Bounded memory (one buffer, reused); all the heavy calls release the GIL.
"""

import math
import threading
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

from hotreload.checkpoint.file_reader import HashedPieces, Pieces, Readable, join_digests
from hotreload.checkpoint.findings import Finding, limit_findings, quote, shown_name
from hotreload.checkpoint.fingerprint import TensorSum
from hotreload.checkpoint.safetensors import SIZES, Header, StoredTensor
from hotreload.quiet import LOUD, Quiet, run_steps
from hotreload.types import TensorBytes

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]

BUFFER = 16 * 2**20
"""With 1 MiB reading is a quarter faster on an idle machine. But each return from a read, a hash
or a reduction waits for the GIL while the engine generates: few large steps disturb it least."""


@dataclass(frozen=True, slots=True)
class _Bits:
    """Marks of a NaN or an infinity in a float dtype's bits, read as integers.

    Their exponent is all ones, so they are the largest integers of each sign: two reductions
    find them without a copy. Negative ones are the largest when read as unsigned.
    """

    signed: Any
    unsigned: Any
    positive: int
    negative: int


_FLOATS = {
    "BF16": _Bits(np.int16, np.uint16, 0x7F80, 0xFF80),
    "F16": _Bits(np.int16, np.uint16, 0x7C00, 0xFC00),
    "F32": _Bits(np.int32, np.uint32, 0x7F800000, 0xFF800000),
    "F64": _Bits(np.int64, np.uint64, 0x7FF << 52, 0xFFF << 52),
    "F8_E5M2": _Bits(np.int8, np.uint8, 0x7C, 0xFC),
    "F8_E4M3": _Bits(np.int8, np.uint8, 0x7F, 0xFF),  # has NaN and no infinity
}


@dataclass(slots=True)
class _Run:
    """Neighbouring tensors of one dtype, read as one stretch however small they are."""

    dtype: str | None
    begin: int
    end: int
    tensors: list[StoredTensor]
    ends: list[int]
    """The end of each tensor, counted from the run's begin."""


@dataclass(slots=True)
class Content:
    """All that the bytes of one file turned out to be."""

    digest: str
    any_nonzero: bool = False
    nonfinite: tuple[Finding, ...] = ()
    """The tensors with NaN or infinities, whether or not those may pass."""
    held: Mapping[str, TensorBytes] = field(default_factory=dict)
    """Each tensor's place in the file, and the digest of its bytes."""
    sums: Mapping[str, int] = field(default_factory=dict)
    """The shares of the tensors that were asked for in a fingerprint."""


def unread(name: str, header: Header, digest: str) -> Content:
    """Make the content of unread bytes, which staging judges; `digest` stands for them."""
    held = {each.name: TensorBytes(name, *header.place_of(each), "") for each in header.tensors}
    return Content(digest, any_nonzero=True, held=held)


def examine(
    file: Readable,
    header: Header | None,
    *,
    counted: Container[str] = (),
    cancel: threading.Event | None = None,
    quiet: Quiet = LOUD,
) -> Content:
    """Read the whole file once; without a header no tensor is known, and its digest is all.

    The tensors that are `counted` are summed up, which takes longer than all the rest.
    """
    header = header or Header((), file.identity.size, 0)
    head = HashedPieces(file, min(BUFFER, header.data_start), cancel)
    scan, tensors = _Scan(file.name), _Tensors(file.name, header, counted)
    data = Pieces(file, BUFFER, cancel)

    def pieces() -> Iterator[None]:
        for _ in head.pieces(0, header.data_start):
            yield
        tensors.update(memoryview(b""), header.data_start)  # the first ones may be empty
        for run in _runs(header):
            for offset, piece in data.pieces(run.begin, run.end):
                tensors.update(piece, offset)
                scan.scan(np.frombuffer(piece, np.uint8), offset, run)
                yield

    run_steps(pieces(), quiet)
    digest = join_digests([head.digest(), *(each.digest for each in tensors.held.values())])
    return Content(digest, scan.any_nonzero, scan.findings, tensors.held, tensors.sums)


def head_of(file: Readable, end: int) -> str:
    """Digest the bytes of a file before `end`, where its first tensor begins."""
    hashing = HashedPieces(file, min(BUFFER, end))
    for _ in hashing.pieces(0, end):
        pass
    return hashing.digest()


def _runs(header: Header) -> Iterator[_Run]:
    run = _Run(None, header.data_start, header.data_start, [], [])
    for tensor in header.tensors:
        if tensor.dtype != run.dtype:
            yield run
            run = _Run(tensor.dtype, run.end, run.end, [], [])
        run.tensors.append(tensor)
        run.end = header.data_start + tensor.end
        run.ends.append(run.end - run.begin)
    yield run


class _Tensors:
    """Digests each tensor's bytes, and sums up those that are counted, while pieces pass."""

    def __init__(self, name: str, header: Header, counted: Container[str]) -> None:
        self.held: dict[str, TensorBytes] = {}
        self.sums: dict[str, int] = {}
        self._name = name
        self._header = header
        self._counted = counted
        # One of each for all: tensors lie one behind the other.
        self._digest = xxhash.xxh3_128()
        self._sum = TensorSum()

    def update(self, piece: memoryview, offset: int) -> None:
        """Take in the next piece: a tensor may begin before it, and end behind it."""
        tensors = self._header.tensors
        while len(self.held) < len(tensors):
            tensor = tensors[len(self.held)]
            begin, end = self._header.place_of(tensor)
            is_counted = tensor.name in self._counted
            part = piece[max(begin - offset, 0) : end - offset]
            self._digest.update(part)
            if is_counted:
                self._sum.update(part)
            if end > offset + len(piece):
                break
            self.held[tensor.name] = TensorBytes(self._name, begin, end, self._digest.hexdigest())
            if is_counted:
                self.sums[tensor.name] = self._sum.value
            self._digest.reset()
            self._sum.reset()


class _Scan:
    """Looks at pieces as they pass; counts bad values per tensor only where there are any."""

    def __init__(self, name: str) -> None:
        self.any_nonzero = False
        self._name = name
        self._bad: dict[str, tuple[StoredTensor, int, int]] = {}

    def scan(self, piece: _Bytes, offset: int, run: _Run) -> None:
        if run.dtype is None:
            return
        bits = _FLOATS.get(run.dtype)
        if bits is None:
            self.any_nonzero = self.any_nonzero or bool(piece.any())
            return
        largest = int(piece.view(bits.signed).max())
        most_negative = int(piece.view(bits.unsigned).max())
        # Minus zero is zero: the smallest signed, and as unsigned only its top bit.
        zero = largest <= 0 and most_negative <= -np.iinfo(bits.signed).min
        self.any_nonzero = self.any_nonzero or not zero
        if largest >= bits.positive or most_negative >= bits.negative:
            self._count(piece, offset, run, bits)

    def _count(self, piece: _Bytes, offset: int, run: _Run, bits: _Bits) -> None:
        mask = piece.view(bits.signed) >= bits.positive
        mask |= piece.view(bits.unsigned) >= bits.negative
        first = bisect_right(run.ends, offset - run.begin)
        for tensor, end in zip(run.tensors[first:], run.ends[first:], strict=True):
            start = end - (tensor.end - tensor.begin) + run.begin - offset  # in this piece
            if start >= len(piece):
                break
            size = SIZES[tensor.dtype]
            begin = start // size  # its first element in the piece; below 0 before it
            part = mask[max(begin, 0) : begin + (tensor.end - tensor.begin) // size]
            if found := int(np.count_nonzero(part)):
                at = int(part.argmax()) + max(begin, 0) - begin
                _, seen, first = self._bad.get(tensor.name, (tensor, 0, at))
                self._bad[tensor.name] = (tensor, seen + found, first)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The tensors with bad values."""
        return limit_findings(self._make_finding(*bad) for bad in self._bad.values())

    def _make_finding(self, tensor: StoredTensor, count: int, first: int) -> Finding:
        values = "1 value" if count == 1 else f"{count} values"
        got = f"{values} NaN or infinite, the first at index {first} of {list(tensor.shape)}"
        words = f"{shown_name(self._name)}: tensor {quote(tensor.name)} has {got}"
        return Finding("nonfinite", words, self._name, tensor.name, "finite values", got)


class OneTensor(_Scan):
    """Looks at the values of one tensor, whose pieces pass in their order."""

    def __init__(self, file: str, tensor: StoredTensor) -> None:
        super().__init__(file)
        size = tensor.end - tensor.begin
        self._run = _Run(tensor.dtype, 0, size, [tensor], [size])
        self._reached = 0

    def look(self, piece: memoryview) -> None:
        """Take in the next piece."""
        self.scan(np.frombuffer(piece, np.uint8), self._reached, self._run)
        self._reached += len(piece)

    def look_in_doubt(self, pieces: Iterable[memoryview], squares: float) -> None:
        """Take in all pieces; look at them unless the sum of the values' squares says enough."""
        if 0 < squares < math.inf:
            self.any_nonzero = True
            return
        for piece in pieces:
            self.look(piece)
