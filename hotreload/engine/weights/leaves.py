"""Named leaves: signature, checksum, statistics. Knows JAX arrays and nothing of engines."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import xxhash
from flax import nnx

CHECKSUM_BITS = 53
"""A gauge is a float64: it holds whole numbers up to 2**53 exactly."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What stands at each place of the engine's list of leaves; the same for every generation.

    `variables` holds the model's own variable where the leaf is a weight, and None where the leaf
    stays as it is: random state (a loaded 0.0.2 model has two such leaves more than a dummy one,
    elsewhere in the order), and weights nothing loads, for which main lists zero-length arrays.
    """

    paths: tuple[str, ...]
    variables: tuple[nnx.Variable[Any] | None, ...]

    @property
    def places(self) -> tuple[int, ...]:
        """The places of weights."""
        return tuple(i for i, variable in enumerate(self.variables) if variable is not None)

    def named(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """The weights among `leaves` by path."""
        return {self.paths[i]: leaves[i] for i in self.places}


def layout_of(model: nnx.Module) -> Layout:
    """The layout of the list that the engine made of `model`."""
    paths = paths_of(model)
    variables = {
        ".".join(map(str, path)): node
        for path, node in nnx.iter_graph(model)
        if isinstance(node, nnx.Variable)
    }
    return Layout(paths, tuple(_weight(variables[path]) for path in paths))


def _weight(variable: nnx.Variable[Any]) -> nnx.Variable[Any] | None:
    kept = isinstance(variable, nnx.RngState) or is_placeholder(variable.get_raw_value())
    return None if kept else variable


def paths_of(model: nnx.Module) -> tuple[str, ...]:
    """The path of every leaf, in the order in which the engine flattens the model."""
    return tuple(path for path, _ in _flat(model))


def leaves_by_path(model: nnx.Module) -> dict[str, Any]:
    """Every leaf of a model by its path, placeholders too."""
    return dict(_flat(model))


def _flat(model: nnx.Module) -> list[tuple[str, Any]]:
    state = nnx.split(model)[1]
    pairs = jax.tree_util.tree_flatten_with_path(state)[0]
    return [(_spell(path), leaf) for path, leaf in pairs]


def _spell(path: Sequence[Any]) -> str:
    """`transformer.layers.0.self_attn.q_proj.weight`; the attribute `value` ends every path."""
    keys = (getattr(key, "key", getattr(key, "idx", None)) for key in path)
    return ".".join(str(key) for key in keys if key is not None)


def is_placeholder(leaf: Any) -> bool:
    """Whether this leaf was only described, and never written."""
    return isinstance(leaf, jax.ShapeDtypeStruct)


def signature(leaf: jax.Array) -> tuple[Any, ...]:
    """All by which the compiled model tells leaves apart: equal signatures never recompile."""
    return (
        leaf.shape,
        leaf.dtype,
        leaf.sharding,
        type(leaf.sharding),
        leaf.committed,
        leaf.aval.weak_type,
    )


def like(leaf: jax.Array | np.ndarray[Any, Any], live: jax.Array) -> jax.Array:
    """`leaf` with the sharding of `live`, in memory of its own.

    On CPU `device_put` aliases aligned host memory, a mapped file too: there only the copy makes
    the memory our own. On an accelerator the transfer is the copy.
    """
    if not live.committed:
        return _copy(jnp.asarray(leaf))
    placed = jax.device_put(leaf, live.sharding)
    is_on_host = any(device.platform == "cpu" for device in live.devices())
    return _copy_to(live.sharding)(placed) if is_on_host else placed


_copy: Callable[[jax.Array], jax.Array] = jax.jit(jnp.copy)


@cache
def _copy_to(sharding: jax.sharding.Sharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(jnp.copy, out_shardings=sharding)


def copied(leaf: jax.Array) -> jax.Array:
    """The same leaf in memory of its own, on an accelerator too."""
    return _copy_to(leaf.sharding)(leaf) if leaf.committed else _copy(leaf)


def zeroed(buffer: jax.Array) -> jax.Array:
    """The buffer overwritten with zeros in place; its old contents, NaN too, are gone."""
    return _zeros_to(buffer.sharding)(buffer)


@cache
def _zeros_to(sharding: jax.sharding.Sharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(jnp.zeros_like, donate_argnums=0, keep_unused=True, out_shardings=sharding)


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of a set of leaves: a 64-bit sum and the root mean square of each."""

    sums: Mapping[str, int]
    rms: Mapping[str, float]

    @property
    def checksums(self) -> dict[str, int]:
        """Each leaf's checksum, at most 2**53."""
        return {path: value & (2**CHECKSUM_BITS - 1) for path, value in self.sums.items()}

    @property
    def fingerprint(self) -> str:
        """Sixteen hex digits for the whole set."""
        lines = (f"{path}:{value:016x}\n" for path, value in sorted(self.sums.items()))
        return xxhash.xxh3_64_hexdigest("".join(lines).encode())


def measure(named: Mapping[str, jax.Array]) -> Measured:
    """Checksum and root mean square of each leaf, computed on the device that holds it."""
    results = jax.device_get({path: _measure(leaf) for path, leaf in named.items()})
    sums = {path: (int(high) << 32) | int(low) for path, (high, low, _) in results.items()}
    return Measured(sums, {path: float(rms) for path, (_, _, rms) in results.items()})


@jax.jit
def _measure(leaf: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Two sums mod 2**32 over a mix of each element's bits and *global* index, and the rms.

    A sum has no order, so every sharding gives the same sum and nothing is gathered; the index
    in the mix makes swapped elements show.
    """
    bits, index = _bits(leaf), _global_index(leaf.shape)
    high = jnp.sum(_mix(bits * np.uint32(0x9E3779B1) + index), dtype=jnp.uint32)
    low = jnp.sum(_mix(bits ^ (index * np.uint32(0x85EBCA77))), dtype=jnp.uint32)
    square = jnp.mean(jnp.square(leaf.astype(jnp.float32))) if leaf.size else jnp.float32(0)
    return high, low, jnp.sqrt(square)


def _bits(leaf: jax.Array) -> jax.Array:
    if leaf.dtype == jnp.bool_ or (leaf.dtype.itemsize == 1 and leaf.dtype.kind in "iu"):
        return leaf.astype(jnp.uint8).astype(jnp.uint32)
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[leaf.dtype.itemsize]
    return jax.lax.bitcast_convert_type(leaf, unsigned).astype(jnp.uint32)


def _global_index(shape: tuple[int, ...]) -> jax.Array:
    index = jnp.zeros(shape, jnp.uint32)
    for axis, length in enumerate(shape):
        place = jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
        index = index * np.uint32(length % 2**32) + place
    return index


def _mix(x: jax.Array) -> jax.Array:
    """The finaliser of MurmurHash3: every bit of the input moves every bit of the output."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
