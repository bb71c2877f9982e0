"""The newer engine's ahead-of-time programs: each lane keeps its own, and none is made twice."""

import importlib.util
import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from hotreload.engine.lanes.bound_leaves import dispatcher_for
from tests.engine.lanes import ahead_of_time

HAS_THEM = importlib.util.find_spec("sgl_jax.srt.model_executor.aot_dispatch") is not None
Seen = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """What one process saw that imported all that an engine needs once."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.lanes.ahead_of_time", tmp_path_factory.mktemp("seen")],
        stdout=subprocess.PIPE,
        env=os.environ | {"SGLANG_JAX_AOT_DISPATCH": "1", "PYTHONPATH": os.getcwd()},
        check=True,
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.real_engine
@pytest.mark.skipif(not HAS_THEM, reason="this version has no ahead-of-time programs")
def test_with_one_set_on_the_device_they_hold_no_leaf_that_leaves_it(seen: Seen) -> None:
    trades = seen["trades"]
    assert all(trades.pop("whole"))
    assert trades == {"compiled later": 0, "own leaves": True, "stays": 0}


@pytest.mark.real_engine
@pytest.mark.skipif(not HAS_THEM, reason="this version has no ahead-of-time programs")
def test_flips_and_turns_compile_nothing_that_was_compiled_before(seen: Seen) -> None:
    flips = seen["flips"]
    assert flips["compiled first"] > 0
    assert flips["compiled later"] == 0
    assert all(flips["whole"])
    each_its_own = {"dispatchers": 2, "own leaves": [True, True]}
    assert flips["lanes"] == [each_its_own] * ahead_of_time.FLIPS


@pytest.mark.real_engine
@pytest.mark.skipif(not HAS_THEM, reason="this version has no ahead-of-time programs")
def test_memory_that_is_given_back_is_not_held_by_them(seen: Seen) -> None:
    releases = seen["releases"]
    assert all(releases.pop("whole"))
    assert releases == {"compiled later": 0, "own leaves": True}


class Dispatcher:
    """Keeps what upstream's keeps."""

    def __init__(
        self, jit_fn: Any, stable_call_args: Any, stable_flat_args: Any, name: str
    ) -> None:
        self._jit_fn = jit_fn
        self._stable_call_args = stable_call_args
        self._stable_flat_args = stable_flat_args
        self._name = name
        self._enabled: bool | None = None
        self._cache: dict[Any, Any] = {}


def leaf(name: str) -> Any:
    return SimpleNamespace(name=name)


def test_a_program_comes_along_with_the_new_leaves_in_the_places_of_the_old() -> None:
    old, new = [leaf("a"), leaf("b"), leaf("c")], [leaf("A"), leaf("B"), leaf("C")]
    first = Dispatcher("jit", ("model", "state", old), ("model", old), "forward")
    first._enabled = True
    first._cache = {"two": ("run", "out", "tree", [old[2], old[0]], [7], "s", "l", "c")}
    made = dispatcher_for(first, new)
    assert made._cache == {"two": ("run", "out", "tree", [new[2], new[0]], [7], "s", "l", "c")}
    assert made._stable_call_args == ("model", "state", new)
    assert made._stable_flat_args == ("model", new)
    assert (made._jit_fn, made._name, made._enabled) == ("jit", "forward", True)
    assert first._cache["two"][3] == [old[2], old[0]]


def test_a_program_whose_leaves_cannot_be_found_is_compiled_anew() -> None:
    old, new = [leaf("a")], [leaf("A")]
    first = Dispatcher("jit", ("model", "state", old), ("model", old), "forward")
    first._cache = {"copied": ("run", "out", "tree", [leaf("a copy")]), "unsafe": object()}
    assert dispatcher_for(first, new)._cache == {}


def test_an_engine_without_such_programs_needs_none() -> None:
    assert dispatcher_for(None, []) is None
