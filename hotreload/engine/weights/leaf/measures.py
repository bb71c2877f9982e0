"""Measures leaves: the number of each tensor they are made of, and each leaf's root mean square.

The numbers are those of the tensors' bytes in a checkpoint, whatever was done to make leaves of
them (`fingerprint` says how they come about).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hotreload.checkpoint import fingerprint
from hotreload.engine.weights.leaf.leaf_rules import Array, Ingredient, Ingredients, Rule
from hotreload.engine.weights.leaf.leaves import freely_split
from hotreload.engine.weights.memory.host_arrays import in_order, is_on_host, on_host

CHECKSUM_BITS = 53
"""A gauge is a float64: it holds whole numbers up to 2**53 exactly."""
MEASURED_AT_A_TIME = 1 << 21
"""Bytes: few enough that a cache has them until all is known of them, and as few calls as that
allows: each gives Python's lock up and takes it again, and two threads wait for each other."""
SQUARED_AT_A_TIME = 1 << 18
WORD = 4
"""Bytes of the words that are summed up."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures that are known of a set of leaves."""

    sums: Mapping[str, Mapping[str, int]]
    """Of each leaf by its path: the number of each tensor in it by the tensor's name."""
    rms: Mapping[str, float]
    """The root mean square of each leaf's elements."""

    def one(self, path: str) -> "One":
        """Return the figures of one leaf."""
        return One(self.sums[path], self.rms[path])

    @property
    def checksums(self) -> dict[str, int]:
        """Each leaf's checksum, at most 2**53."""
        return {path: _checksum(sums) & (2**CHECKSUM_BITS - 1) for path, sums in self.sums.items()}

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits for the whole set."""
        return fingerprint.fingerprint(self.of_tensors)

    @property
    def of_tensors(self) -> dict[str, int]:
        """The number of each tensor by its name."""
        return {name: value for sums in self.sums.values() for name, value in sums.items()}


def _checksum(sums: Mapping[str, int]) -> int:
    if len(sums) == 1:
        return next(iter(sums.values()))
    return int(fingerprint.fingerprint(sums), 16)  # of many experts


@dataclass(frozen=True, slots=True)
class One:
    """Figures that are known of one leaf."""

    sums: Mapping[str, int]
    rms: float


def join_measures(ones: Mapping[str, One]) -> Measured:
    """Join the figures of leaves, given by path, to the figures of the set."""
    sums = {path: one.sums for path, one in ones.items()}
    return Measured(sums, {path: one.rms for path, one in ones.items()})


def add_up_measures(measured: Sequence[Measured]) -> Measured:
    """Add up the figures that several hosts have of their own parts of a set."""
    first = measured[0]
    sums = {
        path: {name: _add_sums(each.sums[path][name] for each in measured) for name in tensors}
        for path, tensors in first.sums.items()
    }
    return Measured(sums, {p: math.hypot(*(each.rms[p] for each in measured)) for p in first.rms})


def splits_words(leaf: jax.Array, parts: Sequence[Ingredient]) -> bool:
    """Say if a word of four bytes may lie on two hosts: then their sums are not the whole's."""
    share = WORD // leaf.dtype.itemsize
    own = leaf.sharding.shard_shape(leaf.shape)
    cut = [length for length, whole in zip(own, leaf.shape, strict=True) if length != whole]
    if cut:
        cut += [part.rule.heads.length for part in parts if part.rule.heads is not None]
    return any(length % share for length in cut if share > 1)


def _add_sums(sums: Iterable[int]) -> int:
    """Add up sums lane by lane: the overflow of one lane must not reach the other."""
    return fingerprint.join_lanes(
        sum(lane) for lane in zip(*map(fingerprint.lanes_of, sums), strict=True)
    )


def measure(named: Mapping[str, jax.Array], parts: Ingredients = MappingProxyType({})) -> Measured:
    """Measure leaves by path; a leaf without parts counts as a tensor of its own name."""
    whole = {path: (Ingredient(path, Rule(leaf.shape)),) for path, leaf in named.items()}
    return join_measures(
        {path: measure_leaf(leaf, parts.get(path) or whole[path]) for path, leaf in named.items()}
    )


def measure_leaf(leaf: jax.Array, parts: Sequence[Ingredient]) -> One:
    """Measure one leaf where it is: on its device, or in host memory that is the device's."""
    if is_on_host(leaf) or not leaf.is_fully_addressable:
        # Of a leaf that lies on several hosts each measures its own: the sums add up to the whole.
        held, tally = on_host(leaf), Tally()
        for part in parts:
            tally.add(part.tensor, [in_order(part.rule.restore(_share(held, part)))])
        return tally.one
    rules = tuple((part.rule, part.expert) for part in parts)
    return one_of(parts, _measure_on_device(freely_split(leaf), rules))


Sums = tuple[jax.Array, ...]
"""Both sums of a tensor's bytes, on a device."""
Figures = tuple[jax.Array, ...]
"""Of a tensor on a device: both sums, and the sum of its elements' squares."""


def one_of(parts: Sequence[Ingredient], figures: Sequence[Figures]) -> One:
    """Return the figures of a leaf from those of its parts; wait until they are computed."""
    computed = jax.device_get(figures)
    sums = {
        part.tensor: fingerprint.join_lanes(lanes)
        for part, (*lanes, _) in zip(parts, computed, strict=True)
    }
    count = sum(math.prod(part.rule.shape) for part in parts)
    return One(sums, _root(sum(float(square) for *_, square in computed), count))


class Tally:
    """Measures the tensors of one leaf after the other as they pass, as a file has them."""

    def __init__(self) -> None:
        self._total = fingerprint.TensorSum()
        self._room = np.empty(SQUARED_AT_A_TIME, np.uint32)
        self.begin()

    def begin(self) -> None:
        """Begin with another leaf."""
        self._sums: dict[str, int] = {}
        self._squares = 0.0
        self._count = 0
        self.passing: str | None = None
        """The tensor that is measured while its pieces pass."""
        self.squares = 0.0
        """The sum of the squares of that tensor's elements so far."""

    def add(self, name: str, pieces: Iterable[Array]) -> None:
        """Measure one tensor, whose pieces follow each other."""
        self._total.reset()
        self.passing, self.squares = name, 0.0
        for piece in pieces:
            flat = piece.reshape(-1)
            for part in _in_pieces(flat, MEASURED_AT_A_TIME // flat.itemsize):
                self._total.update(part.view(np.uint8))
                self._add_squares(part)
            self._count += piece.size
        self.passing = None
        self._squares += self.squares
        self._sums[name] = self._total.value

    @property
    def one(self) -> One:
        """Figures of the leaf."""
        return One(self._sums, _root(self._squares, self._count))

    def _add_squares(self, flat: Array) -> None:
        """Add up the elements' squares: NaN where one is NaN, infinite where one overflows."""
        if flat.dtype == jnp.bfloat16:
            pieces = self._pairs_as_float32(flat.view(np.uint16))
        else:
            pieces = (each.astype(np.float32) for each in _in_pieces(flat, SQUARED_AT_A_TIME))
        with np.errstate(all="ignore"):
            for piece in pieces:
                self.squares += float(np.dot(piece, piece))

    def _pairs_as_float32(self, bits: Array) -> Iterator[np.ndarray[Any, np.dtype[np.float32]]]:
        """Yield bfloat16s as float32s, whose upper half they are; each piece lasts until the next.

        The even places come first in each piece, then the odd ones.
        """
        words = (np.append(bits, np.uint16(0)) if len(bits) % 2 else bits).view(np.uint32)
        for piece in _in_pieces(words, SQUARED_AT_A_TIME):
            held = self._room[: len(piece)]
            yield np.left_shift(piece, np.uint32(16), out=held).view(np.float32)
            yield np.bitwise_and(piece, np.uint32(0xFFFF0000), out=held).view(np.float32)


def _share(leaf: Any, part: Ingredient) -> Any:
    return leaf if part.expert is None else leaf[part.expert]


def _root(squares: float, count: int) -> float:
    return math.sqrt(squares / count) if count and squares >= 0 else squares


def _in_pieces(array: Array, size: int) -> Iterator[Array]:
    for begin in range(0, len(array), size):
        yield array[begin : begin + size]


# --- on a device ------------------------------------------------------------------------------


@partial(jax.jit, static_argnums=1)
def _measure_on_device(
    leaf: jax.Array, rules: tuple[tuple[Rule, int | None], ...]
) -> list[Figures]:
    """Return the figures of each tensor in the leaf."""
    return [
        figures_of(rule.restore(leaf if expert is None else leaf[expert])) for rule, expert in rules
    ]


def figures_of(tensor: jax.Array) -> Figures:
    """Return the figures of a tensor as a file has it, to be computed on its device."""
    return (*sums_of(tensor), jnp.sum(jnp.square(tensor.astype(jnp.float32))))


def sums_of(tensor: jax.Array) -> Sums:
    """Return both sums of an array on a device, to be computed there."""
    words, at = _words(tensor)
    fold = fingerprint.fold_words(words)
    block = fingerprint.number_of_block(at // fingerprint.BLOCK)
    numbers = partial(fingerprint.number_of_place, at % fingerprint.BLOCK)
    return tuple(
        jnp.sum(fold * numbers(lane) * block, dtype=jnp.uint32) for lane in range(fingerprint.LANES)
    )


def _words(tensor: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the tensor's words of four bytes, and the place of each in the file."""
    bits = _bits(tensor)
    share = 4 // bits.dtype.itemsize
    if not bits.ndim or bits.shape[-1] % share:
        # Only then are words made across rows, which may gather what is sharded.
        bits = jnp.pad(bits.reshape(-1), (0, -bits.size % share))
    width = bits.shape[-1] // share
    parts = bits.reshape(*bits.shape[:-1], width, share).astype(jnp.uint32)
    shifts = jnp.arange(share, dtype=jnp.uint32) * np.uint32(32 // share)
    words = jnp.sum(parts << shifts, axis=-1, dtype=jnp.uint32)
    return words, _global_index(words.shape)


def _bits(leaf: jax.Array) -> jax.Array:
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint8)
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[leaf.dtype.itemsize]
    return jax.lax.bitcast_convert_type(leaf, unsigned)


def _global_index(shape: tuple[int, ...]) -> jax.Array:
    index = jnp.zeros(shape, jnp.uint32)
    for axis, length in enumerate(shape):
        place = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        index = index * np.uint32(length % 2**32) + place
    return index
