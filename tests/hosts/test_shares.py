"""A leaf that lies on several hosts is measured in shares, which add up to the whole."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from hotreload.engine.weights.leaf.differences import copies_here, find_differing
from hotreload.engine.weights.leaf.leaf_rules import Heads, Ingredient, Rule
from hotreload.engine.weights.leaf.measures import (
    add_up_measures,
    join_measures,
    measure_leaf,
    splits_words,
)

ROWS, COLUMNS = 8, 12


def held_by(whole: Any, *parts: Any, is_first: bool = True) -> Any:
    """A leaf of which this host has these parts alone."""
    shards = [
        SimpleNamespace(index=part, data=jnp.asarray(whole[part]), replica_id=int(not is_first))
        for part in parts
    ]
    cpu = SimpleNamespace(platform="cpu")
    return SimpleNamespace(
        shape=whole.shape,
        dtype=whole.dtype,
        is_fully_addressable=False,
        addressable_shards=shards,
        sharding=SimpleNamespace(
            shard_shape=lambda shape: shards[0].data.shape,
            devices_indices_map=lambda shape: {"cpu:0": parts[0], "cpu:1": parts[-1]},
        ),
        devices=lambda: [cpu],
    )


def rows(begin: int, end: int) -> tuple[slice, ...]:
    return (slice(begin, end), slice(None))


def columns(begin: int, end: int) -> tuple[slice, ...]:
    return (slice(None), slice(begin, end))


RULES = {
    "as it is": Rule((ROWS, COLUMNS)),
    "turned": Rule((COLUMNS, ROWS), axes=(1, 0)),
    "with heads twice": Rule((ROWS, COLUMNS // 2), Heads(1, 3, 2, 2, copies=2)),
}


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("along", [rows, columns])
def test_shares_add_up_to_the_whole(rule: Rule, along: Any, dtype: Any) -> None:
    numbers = np.random.default_rng(1).normal(size=rule.shape).astype(dtype)
    whole, parts = np.ascontiguousarray(rule.apply(numbers)), (Ingredient("w", rule),)
    assert whole.shape == (ROWS, COLUMNS)
    middle = (ROWS if along is rows else COLUMNS) // 2
    shares = [held_by(whole, along(0, middle)), held_by(whole, along(middle, 2 * middle))]
    assert not any(splits_words(share, parts) for share in shares)
    measured = [join_measures({"leaf": measure_leaf(share, parts)}) for share in shares]
    together, alone = add_up_measures(measured), measure_leaf(jnp.asarray(whole), parts)
    assert together.sums == {"leaf": alone.sums}
    assert together.rms["leaf"] == pytest.approx(alone.rms)
    assert measured[0].fingerprint != together.fingerprint != measured[1].fingerprint


def test_what_several_hosts_hold_counts_once() -> None:
    whole = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    parts = (Ingredient("w", Rule(whole.shape)),)
    all_of_it = (slice(None), slice(None))
    first, again = held_by(whole, all_of_it), held_by(whole, all_of_it, is_first=False)
    measured = [join_measures({"leaf": measure_leaf(share, parts)}) for share in (first, again)]
    assert add_up_measures(measured).sums == {"leaf": measure_leaf(jnp.asarray(whole), parts).sums}


def test_copies_on_several_hosts_that_differ_are_told() -> None:
    whole = np.ones((ROWS, COLUMNS), np.float32)
    damaged = whole.copy()
    damaged[3, 4] = 2
    all_of_it = (slice(None), slice(None))

    def told(*held: Any) -> set[str]:
        return find_differing(copies_here({"norm": held_by(each, all_of_it)}) for each in held)

    assert told(whole, whole.copy()) == set()
    assert told(whole, damaged) == told(whole, whole, damaged) == {"norm"}


def test_nan_in_one_share_shows_in_the_whole() -> None:
    whole = np.ones((ROWS, COLUMNS), np.float32)
    whole[0, 0] = np.nan
    shares = [held_by(whole, rows(0, 4)), held_by(whole, rows(4, 8))]
    parts = (Ingredient("w", Rule(whole.shape)),)
    measured = [join_measures({"leaf": measure_leaf(share, parts)}) for share in shares]
    assert np.isnan(add_up_measures(measured).rms["leaf"])


@pytest.mark.parametrize(
    ("rule", "part"),
    [
        (Rule((ROWS, COLUMNS)), columns(0, 3)),
        (Rule((COLUMNS, ROWS), axes=(1, 0)), rows(0, 1)),
        (Rule((ROWS, COLUMNS // 4 * 3), Heads(1, 3, 3, 4)), columns(0, 4)),
    ],
)
def test_a_leaf_that_is_cut_within_a_word_is_told(rule: Rule, part: tuple[slice, ...]) -> None:
    for dtype, is_told in ((ml_dtypes.bfloat16, True), (np.float32, False)):
        whole = np.zeros((ROWS, COLUMNS), dtype)
        assert splits_words(held_by(whole, part), (Ingredient("w", rule),)) is is_told


def test_a_leaf_that_is_not_cut_is_never_told() -> None:
    whole = np.zeros((3, 5), ml_dtypes.bfloat16)
    assert not splits_words(held_by(whole, rows(0, 3)), (Ingredient("w", Rule((3, 5))),))
