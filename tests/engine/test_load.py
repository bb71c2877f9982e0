"""How busy a scheduler is, without an engine; the contract and the lanes ask real ones."""

from types import SimpleNamespace
from typing import Any

import pytest

from hotreload.engine.lanes.lane import Bound, Lane
from hotreload.engine.lanes.lanes import Lanes
from hotreload.engine.upstream.thread.load_notes import NOTED_SECONDS, Load
from hotreload.types import EngineLoad


def unknown_kind(**more: Any) -> Any:
    """A scheduler that no kind fits, with 3 requests that wait and 2 that run."""
    return SimpleNamespace(
        waiting_queue=[1, 2, 3],
        running_batch=SimpleNamespace(batch_size=lambda: 2),
        max_total_num_tokens=100,
        page_size=2,
        _get_token_info=lambda: (70, 0.7, 10, 20),
        **more,
    )


def noted(scheduler: Any) -> EngineLoad:
    load = Load(scheduler, None)
    load.note(1.0)
    return load.last


def test_an_engine_that_has_no_lanes_tells_it_too() -> None:
    tokens = {"kv_requests": 70, "kv_prefixes": 20, "kv_free": 10}
    assert noted(unknown_kind()) == EngineLoad(3, 2, **tokens, page_size=2)


def test_a_pool_of_several_parts_tells_no_tokens() -> None:
    assert noted(unknown_kind(is_hybrid=True)) == EngineLoad(3, 2, page_size=2)


def test_a_note_is_good_for_a_moment() -> None:
    scheduler = unknown_kind()
    load = Load(scheduler, None)
    load.note(1.0)
    scheduler.waiting_queue = []
    load.note(1.0 + NOTED_SECONDS / 2)
    assert load.last.waiting == 3
    load.note(1.0 + NOTED_SECONDS)
    assert load.last.waiting == 0


def test_an_engine_that_nobody_knows_goes_on_and_is_asked_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    load = Load(SimpleNamespace(), None)
    for second in range(9):
        load.note(float(second))
    assert load.last == EngineLoad()
    assert [record.message for record in caplog.records] == ["engine.load_unknown"]


def test_the_lane_in_which_weights_are_proven_is_no_part_of_it() -> None:
    lanes = object.__new__(Lanes)
    each = [Lane(None, number, Bound([], None), has_own_pool=number == 1) for number in range(3)]
    lanes._rotation = SimpleNamespace(lanes=each)  # type: ignore[assignment]
    assert [lane.number for lane in lanes.serving_lanes] == [0, 2]
