"""Shows the first numbers of a tensor as a checkpoint has it, or of a leaf."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hotreload.engine.weights.leaf.leaf_rules import Ingredient, Ingredients
from hotreload.engine.weights.leaf.leaves import freely_split
from hotreload.errors import BadRequest, did_you_mean, show_value

SHOWN_VALUES = 2**20
"""The most numbers that are shown at a time: some 20 MB of JSON."""


def first_values(
    named: Mapping[str, jax.Array], parts: Ingredients, name: str, most: int
) -> list[Any]:
    """Return the first numbers, or rows, of the tensor of this name, else of the leaf; it blocks.

    BadRequest if neither a tensor nor a leaf has the name, or the numbers were too many.
    """
    leaf, part = _find(named, parts, name)
    shape = (leaf.shape if part is None else part.rule.shape) or (1,)
    values = min(most, shape[0]) * math.prod(shape[1:])
    if values > SHOWN_VALUES:
        raise BadRequest(
            f"truncate_size: {values} numbers are too many, {SHOWN_VALUES} are shown at a time",
            param="truncate_size",
        )
    first: list[Any] = np.asarray(jax.device_get(_first(freely_split(leaf), part, most))).tolist()
    return first


def _find(
    named: Mapping[str, jax.Array], parts: Ingredients, name: str
) -> tuple[jax.Array, Ingredient | None]:
    for path, made_of in parts.items():
        for part in made_of:
            if part.tensor == name:
                return named[path], part
    if name in named:
        return named[name], None
    tensors = (part.tensor for made_of in parts.values() for part in made_of)
    raise BadRequest(
        f"name: there is no leaf and no tensor {show_value(name)}"
        f"{did_you_mean(name, [*named, *tensors])}; GET /leaves lists the leaves",
        param="name",
    )


@partial(jax.jit, static_argnums=(1, 2))
def _first(leaf: jax.Array, part: Ingredient | None, most: int) -> jax.Array:
    """Return the first rows in one compiled program, which makes no second copy of the tensor."""
    if part is not None:
        leaf = part.rule.restore(leaf if part.expert is None else leaf[part.expert])
    return jnp.atleast_1d(leaf)[:most].astype(jnp.float32)
