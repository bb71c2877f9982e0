"""Rules make of a tensor what upstream's loader makes of it."""

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hotreload.engine.weights.leaf.leaf_rules import Array, Heads, Rule


@st.composite
def headed(draw: st.DrawFn) -> tuple[Array, Heads]:
    """A tensor with heads along one of its axes, and what becomes of them."""
    small = st.integers(1, 4)
    count, length, rank = draw(small), draw(small), draw(st.integers(1, 3))
    axis = draw(st.integers(0, rank - 1))
    shape = [draw(small) for _ in range(rank)]
    shape[axis] = count * length
    padded = length + draw(st.integers(0, 3))
    heads = Heads(axis, count, length, padded, draw(small), draw(st.integers(0, 2)))
    tensor = np.arange(1, np.prod(shape) + 1, dtype=np.int32).reshape(shape)
    return tensor, heads


@given(headed())
def test_heads_are_padded_repeated_and_followed_by_empty_ones(
    example: tuple[Array, Heads],
) -> None:
    tensor, heads = example
    along = np.moveaxis(tensor, heads.axis, 0)
    expected = []
    for head in np.split(along, heads.count):
        rest = np.zeros((heads.padded - heads.length, *along.shape[1:]), along.dtype)
        expected += [np.concatenate([head, rest])] * heads.copies
    expected += [np.zeros((heads.padded, *along.shape[1:]), along.dtype)] * heads.empty
    made = heads.apply(tensor)
    assert np.array_equal(np.moveaxis(made, heads.axis, 0), np.concatenate(expected))
    assert made.shape[heads.axis] == heads.leaf_length


@given(headed(), st.randoms())
def test_a_rule_says_the_shape_of_what_it_makes(
    example: tuple[Array, Heads], chance: random.Random
) -> None:
    tensor, heads = example
    axes = list(range(tensor.ndim))
    chance.shuffle(axes)
    rule = Rule(tensor.shape, heads, tuple(axes))
    assert rule.apply(tensor).shape == rule.leaf_shape
    assert np.array_equal(rule.apply(tensor), heads.apply(tensor).transpose(axes))


def test_a_rule_that_moves_nothing_keeps_the_files_memory() -> None:
    tensor = np.zeros((2, 3))
    assert Rule((2, 3)).moves_nothing
    assert np.shares_memory(Rule((2, 3)).apply(tensor), tensor)
    assert not Rule((2, 3), axes=(1, 0)).moves_nothing
    assert not Rule((2, 3), Heads(0, 2, 1, 2)).moves_nothing
