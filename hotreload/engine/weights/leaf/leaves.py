"""Named leaves: signature, checksum, statistics. Knows JAX arrays and nothing of engines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding


@dataclass(frozen=True)
class Layout:
    """The places in the engine's list of leaves; they are the same for every generation.

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

    def place_of(self, path: str) -> int:
        """Find the place of a leaf in the engine's list."""
        return self._place_by_path[path]

    @cached_property
    def _place_by_path(self) -> dict[str, int]:
        return {path: place for place, path in enumerate(self.paths)}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each weight by path."""
        weights = ((self.paths[place], self.variables[place]) for place in self.places)
        return {path: tuple(v.get_raw_value().shape) for path, v in weights if v is not None}

    @property
    def dtypes(self) -> dict[str, Any]:
        """The dtype of each weight by path."""
        weights = ((self.paths[place], self.variables[place]) for place in self.places)
        return {path: v.get_raw_value().dtype for path, v in weights if v is not None}

    def drop_references(self) -> None:
        """Empty the model's own variables, once nothing computes with the model any more."""
        for variable in self.variables:
            if variable is not None:
                variable.set_raw_value(None)

    def by_path(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """Return the weights among `leaves` by path."""
        return {self.paths[i]: leaves[i] for i in self.places}


def layout_of(model: nnx.Module) -> Layout:
    """Return the layout of the list that the engine made of `model`."""
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
    """Return the path of every leaf, in the order in which the engine flattens the model."""
    return tuple(path for path, _ in _flat(model))


def leaves_by_path(model: nnx.Module) -> dict[str, Any]:
    """Return every leaf of a model by its path, placeholders too."""
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
    """Say if this leaf was only described, and never written."""
    return isinstance(leaf, jax.ShapeDtypeStruct)


def signature(leaf: jax.Array) -> tuple[Any, ...]:
    """Return all that a compiled program depends on: leaves of equal signature never recompile."""
    return (
        leaf.shape,
        leaf.dtype,
        leaf.sharding,
        type(leaf.sharding),
        leaf.committed,
        leaf.aval.weak_type,
    )


def like(leaf: jax.Array | np.ndarray[Any, Any], live: jax.Array) -> jax.Array:
    """Copy `leaf` into memory of its own, with the sharding of `live`."""
    return place_copy(leaf, live.sharding if live.committed else None)


def place_copy(
    leaf: jax.Array | np.ndarray[Any, Any], sharding: jax.sharding.Sharding | None
) -> jax.Array:
    """Copy `leaf` into memory of its own, with this sharding; None leaves it uncommitted.

    On CPU `device_put` aliases aligned host memory, a mapped file too: there only the copy makes
    the memory our own. On an accelerator the transfer is the copy.
    """
    if sharding is None:
        return _copy(jnp.asarray(leaf))
    put = jax.device_put(leaf, sharding)
    devices: set[Any] = sharding.device_set
    is_on_host = any(device.platform == "cpu" for device in devices)
    return _copy_to(sharding)(put) if is_on_host else put


def freely_split(leaf: jax.Array) -> jax.Array:
    """Return the same memory as an array whose results the compiler may split as it likes.

    0.1.0rc0's mesh requires each step to say how its result is split (`AxisType.Explicit`). There
    a slice, or a number of heads, that the devices cannot share evenly is an error.
    """
    if not is_explicit(leaf.sharding):
        return leaf
    put: jax.Array = jax.device_put(leaf, without_types(leaf.sharding))
    return put


def is_explicit(sharding: Any) -> bool:
    """Say if the sharding's mesh requires each step to say how its result is split."""
    return isinstance(sharding, NamedSharding) and AxisType.Explicit in sharding.mesh.axis_types


def without_types(sharding: Any) -> Any:
    """Return the same sharding on a mesh that lets the compiler split the results."""
    return _without_axis_types(sharding) if is_explicit(sharding) else sharding


@cache
def _without_axis_types(sharding: NamedSharding) -> NamedSharding:
    mesh = Mesh(sharding.mesh.devices, sharding.mesh.axis_names)
    return NamedSharding(mesh, sharding.spec)


_copy: Callable[[jax.Array], jax.Array] = jax.jit(jnp.copy)


@cache
def _copy_to(sharding: jax.sharding.Sharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(jnp.copy, out_shardings=sharding)


@dataclass(frozen=True, slots=True)
class Vacated:
    """Stands for an array whose memory was given back: all but what was in it."""

    shape: tuple[int, ...]
    dtype: Any
    sharding: Any
    committed: bool
    nbytes: int

    @classmethod
    def by(cls, array: jax.Array) -> "Vacated":
        """Give back the memory of an array, even if references to the array are left."""
        left = cls(array.shape, array.dtype, array.sharding, array.committed, array.nbytes)
        array.delete()
        return left

    def zeros(self) -> jax.Array:
        """Make an array of zeros with the same signature."""
        if not self.committed:
            return jnp.zeros(self.shape, self.dtype)
        made: jax.Array = _zeros(self.shape, self.dtype, self.sharding)()
        return made


@cache
def _zeros(shape: tuple[int, ...], dtype: Any, sharding: Any) -> Callable[[], jax.Array]:
    return jax.jit(lambda: jnp.zeros(shape, dtype), out_shardings=sharding)


def fill_with_zeros(buffer: jax.Array) -> jax.Array:
    """Overwrite the buffer with zeros in place; its old contents, NaN too, are gone."""
    return _zeros_to(buffer.sharding)(buffer)


@cache
def _zeros_to(sharding: jax.sharding.Sharding) -> Callable[[jax.Array], jax.Array]:
    return jax.jit(jnp.zeros_like, donate_argnums=0, keep_unused=True, out_shardings=sharding)


def wait_for(layout: Layout, leaves: list[jax.Array]) -> None:
    """Wait until all weights among the leaves are on their devices."""
    for place in layout.places:
        leaves[place].block_until_ready()
