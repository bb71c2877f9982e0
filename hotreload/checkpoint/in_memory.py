"""Tensors in memory, read as the safetensors file that they would make; none is written.

So they pass the checks and the loader that files pass. Knows numpy; an array of JAX is asked for
its values, one tensor at a time.
"""

import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import count
from types import MappingProxyType
from typing import Any

import numpy as np

from hotreload.checkpoint.arrangement import (
    ArrangedArray,
    Arrangement,
    as_in_a_file,
    is_within_reach,
    of_stack,
    plain,
)
from hotreload.checkpoint.file_reader import Changed, Identity
from hotreload.checkpoint.known_names import SPELT
from hotreload.errors import BadRequest, show_value
from hotreload.types import IN_MEMORY

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_ALIGNED = 8
_NUMBERS = count(1)


class InMemory:
    """A mapping of names to arrays, laid out like a file: by dtype, then by name.

    Its arrays stay the caller's. Writing to them while they are read raises CheckpointChanged:
    their bytes are hashed when they are checked and when they are loaded.
    """

    name = IN_MEMORY

    def __init__(
        self,
        tensors: Mapping[str, Any],
        *,
        called: Mapping[str, str] = MappingProxyType({}),
        is_unread: bool = False,
    ) -> None:
        """BadRequest for a value that is no array; `called` are the caller's names."""
        self.called = called
        self.is_unread = is_unread
        """True if the checks skip the values: staging takes the arrays over and judges them."""
        for name, array in tensors.items():
            _check_array(name, plain(array))
        self._arrays = sorted(tensors.items(), key=lambda item: (_dtype_of(item[1]), item[0]))
        self._at = {name: at for at, (name, _) in enumerate(self._arrays)}
        self.header = _header(self._arrays)
        """As a file has it behind the eight bytes that say how long it is."""
        self.start = len(self.header).to_bytes(8, "little") + self.header
        """The bytes before the first tensor."""
        self.begins = [len(self.start)]
        """The offset at which each tensor begins, and the one at which the last ends."""
        for _, array in self._arrays:
            self.begins.append(self.begins[-1] + _size_of(array))
        self.identity = Identity(-1, next(_NUMBERS), self.begins[-1], 0, 0)

    @property
    def names(self) -> list[str]:
        """The names of its tensors; none once they were let go of."""
        return [name for name, _ in self._arrays]

    def open(self) -> "OpenedMemory":
        """Make a reader of it, for one thread."""
        return OpenedMemory(self)

    def array(self, at: int) -> tuple[str, Any]:
        """Return the tensor of this place, and its name; Changed after `close`."""
        if not self._arrays:
            raise Changed("it was let go of")
        return self._arrays[at]

    def by_name(self) -> dict[str, Any]:
        """Return the arrays by their names, as they are held; Changed after `close`."""
        named = (self.array(at) for at in range(len(self.begins) - 1))
        return {name: plain(array) for name, array in named}

    @property
    def arrangements(self) -> dict[str, Arrangement]:
        """The changes that make tensors of them, of those that need one."""
        return {name: each.how for name, each in self._arrays if isinstance(each, ArrangedArray)}

    @property
    def places(self) -> dict[str, Mapping[int, int]]:
        """The place of each that is held in a stack, by the axes that stack."""
        return {n: each.places for n, each in self._arrays if isinstance(each, ArrangedArray)}

    def bytes_of(self, name: str) -> Bytes:
        """Return the bytes of a tensor as a file has them; Changed if it is gone."""
        return _bytes_of(*self.array(self._at[name]))

    @property
    def are_on_devices(self) -> bool:
        """Say if all are arrays of JAX that lie on accelerators."""
        return all(is_on_device(plain(array)) for _, array in self._arrays)

    @property
    def are_on_host(self) -> bool:
        """Say if all are arrays of JAX, each in the memory of one CPU."""
        return all(_is_on_host(plain(array)) for _, array in self._arrays)

    @property
    def are_within_reach(self) -> bool:
        """Say of arrays of JAX if their devices can take each out of its stack for themselves."""
        return all(is_within_reach(array) for _, array in self._arrays)

    def drop(self) -> None:
        """Let go of the arrays, which are not read any more."""
        self._arrays = []


class OpenedMemory:
    """Reads tensors in memory like an open file; holds a copy of one at most."""

    def __init__(self, memory: InMemory) -> None:
        self.name = memory.name
        self.identity = memory.identity
        self._memory = memory
        self._held: tuple[int, Bytes] | None = None

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill the buffer from `offset`; Changed when a tensor cannot be read any more."""
        filled = 0
        for piece in self._pieces(offset, offset + len(buffer)):
            buffer[filled : filled + len(piece)] = piece
            filled += len(piece)

    def close(self) -> None:
        """Let go of what was copied."""
        self._held = None

    def _pieces(self, begin: int, end: int) -> Iterator[memoryview]:
        """Yield the bytes between two places: of the head, and of each tensor."""
        start, begins = self._memory.start, self._memory.begins
        if begin < len(start):
            yield memoryview(start)[begin:end]
            begin = len(start)
        while begin < end:
            at = bisect_right(begins, begin) - 1
            held = self._tensor(at)
            yield held[begin - begins[at] : end - begins[at]].data
            begin = begins[at + 1]

    def _tensor(self, at: int) -> Bytes:
        if self._held is None or self._held[0] != at:
            self._held = None  # free it before there is more
            name, array = self._memory.array(at)
            held = _bytes_of(name, array)
            if len(held) != self._memory.begins[at + 1] - self._memory.begins[at]:
                raise Changed(f"{name} has another size now")
            self._held = at, held
        return self._held[1]


def _check_array(name: Any, array: Any) -> None:
    if not isinstance(name, str):
        raise BadRequest(f"the mapping: {show_value(name)} is no name of a tensor")
    if not isinstance(array, np.ndarray | np.generic) and not _is_of_jax(array):
        kind = f"{type(array).__module__}.{type(array).__qualname__}"
        words = f"tensor {show_value(name)} is a {kind}: give an array of numpy or JAX"
        raise BadRequest(f"the mapping: {words}")
    if not getattr(array, "is_fully_addressable", True):
        words = f"tensor {show_value(name)} lies partly on other hosts: gather it first"
        raise BadRequest(f"the mapping: {words}")


def _is_of_jax(array: Any) -> bool:
    """Return whether it is an array of JAX, without importing JAX."""
    if not all(hasattr(array, each) for each in ("devices", "dtype", "shape", "__array__")):
        return False
    return hasattr(array.dtype, "itemsize") and not str(array.dtype).startswith("key<")


def never_change(tensors: Mapping[Any, Any]) -> bool:
    """Say if there are any, all of them arrays of JAX, and all still there."""
    return bool(tensors) and all(map(_is_there, map(plain, tensors.values())))


def _is_there(array: Any) -> bool:
    is_ours = isinstance(array, np.ndarray | np.generic)
    return not is_ours and _is_of_jax(array) and not array.is_deleted()


def is_on_device(array: Any) -> bool:
    """Say if it is an array of JAX that lies on accelerators."""
    return _is_there(array) and all(device.platform != "cpu" for device in array.devices())


def _is_on_host(array: Any) -> bool:
    """Say if it is an array of JAX whose memory is the host's: numpy sees it as it lies."""
    if not _is_there(array) or len(array.devices()) > 1:
        return False
    return all(device.platform == "cpu" for device in array.devices())


def _dtype_of(array: Any) -> str:
    name = str(np.dtype(array.dtype).name)
    return SPELT.get(name, name)


def _size_of(array: Any) -> int:
    return int(np.dtype(array.dtype).itemsize * np.prod(array.shape, dtype=np.int64))


def _header(arrays: list[tuple[str, Any]]) -> bytes:
    entries, begin = {}, 0
    for name, array in arrays:
        offsets = [begin, begin := begin + _size_of(array)]
        shape = [int(length) for length in array.shape]
        entries[name] = {"dtype": _dtype_of(array), "shape": shape, "data_offsets": offsets}
    text = json.dumps(entries).encode()
    return text + b" " * (-len(text) % _ALIGNED)


def _bytes_of(name: str, array: Any) -> Bytes:
    """Return a tensor's bytes as a file has them: its own memory, or a copy in that order."""
    try:
        given = plain(array)
        is_ours = isinstance(given, np.ndarray | np.generic)
        held = of_stack(array, np.asarray(given)) if is_ours else _on_host(array)
    except RuntimeError as gone:
        raise Changed(f"{name} cannot be read: {gone}") from gone
    held = as_in_a_file(array, held)
    if held.dtype.byteorder == ">":
        held = held.astype(held.dtype.newbyteorder("<"))
    return np.ascontiguousarray(held).reshape(-1).view(np.uint8)


def _on_host(array: Any) -> np.ndarray[Any, Any]:
    """Copy the values of an array of JAX, or of a part of one, to the host.

    An array keeps what it was asked for, as long as it lives: so a copy is asked, but where the
    memory of the one device is the host's.
    """
    given = plain(array)
    if _is_on_host(given):
        # Asked itself it keeps numpy's view of it (jax 0.11), and its owner could not donate it.
        view = np.asarray(given.to_device(given.sharding))
        return np.asarray(of_stack(array, view))
    if not is_within_reach(array):
        return np.asarray(of_stack(array, np.asarray(given.copy())))
    part = of_stack(array, given)
    return np.asarray(part.copy() if part is given else part)
