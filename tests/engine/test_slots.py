"""Both homes of the live leaves, and the refusal of a third, with stand-ins for the engine."""

from types import SimpleNamespace
from typing import Any

import pytest

from hotreload.engine.slots import AttributeSlot, ClosureSlot, find_slot
from hotreload.errors import ConfigError


def first_release() -> Any:
    """`model_runner` as 0.0.2 has it: the leaves are a cell of a closure."""
    model_state_leaves = ["old"]
    return SimpleNamespace(jitted_run_model=lambda: model_state_leaves)


def main_branch() -> Any:
    """`model_runner` as main has it: the leaves are an attribute, read at each step."""
    runner = SimpleNamespace(model_state_leaves=["old"])
    runner.jitted_run_model = lambda: runner.model_state_leaves
    return runner


@pytest.mark.parametrize(
    ("runner", "kind"), [(first_release(), ClosureSlot), (main_branch(), AttributeSlot)]
)
def test_the_next_step_sees_the_list_that_was_bound(runner: Any, kind: type) -> None:
    slot = find_slot(runner)
    old, new = slot.read(), ["new"]
    slot.rebind(new)
    assert type(slot) is kind
    assert runner.jitted_run_model() is new
    assert slot.read() is new
    assert old == ["old"], "a list changed in place would go unnoticed by main's dispatcher"


def test_an_engine_that_keeps_its_leaves_elsewhere_is_named_with_what_is_supported() -> None:
    with pytest.raises(ConfigError, match=r"sglang-jax \S+ keeps .* supported version, 0\.0\.2"):
        find_slot(SimpleNamespace(jitted_run_model=lambda: None))
