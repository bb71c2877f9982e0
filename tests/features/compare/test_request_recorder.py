"""Clients' requests are kept as an operator allows: some while a checkpoint waits, the last."""

from collections.abc import Mapping, Sequence
from math import inf
from random import Random
from typing import Any

import pytest

from hotreload.behaviour import HeardRequest
from hotreload.core.way_in.admission import LetIn
from hotreload.features.compare.replay import MOST_MIRRORED, HearingNow, RequestRecorder
from hotreload.features.compare.settings import CompareSettings
from hotreload.types import Generation, Revision
from tests.features.admissions import end_answer, listening


def recorder(mirror: float = 0.0, replay: int = 0, seed: int = 1) -> RequestRecorder:
    return RequestRecorder(CompareSettings(mirror=mirror, replay=replay), Random(seed).random)


def ended(*ids: int) -> dict[str, Any]:
    meta = {"finish_reason": {"type": "stop"}, "completion_tokens": len(ids)}
    return {"text": "", "output_ids": [*ids], "meta_info": meta}


def request(prompts: Mapping[int, Sequence[int]], copies: int = 1) -> LetIn:
    """A request whose prompts have these ids."""
    generation = Generation(1, Revision("first", "step_0"), "fp", 0.0, {}, 0)
    return LetIn(generation, len(prompts), copies, inf, lambda: prompts)


def hears(one: RequestRecorder, *prompts: int) -> None:
    """Each of these is asked, and answered by itself."""
    for prompt in prompts:
        with listening(one, request({0: [prompt]})) as callbacks:
            end_answer(callbacks, 0, ended(prompt))


def prompts_of(heard: Sequence[HeardRequest]) -> list[int]:
    return [each.prompt[0] for each in heard]


def test_the_last_requests_are_kept_and_those_before_are_forgotten() -> None:
    one = recorder(replay=3)
    hears(one, 1, 2, 3, 4, 5)
    assert prompts_of(one.take_recorded()) == [5, 4, 3]
    assert one.now == HearingNow(0.0, 3, 3, 0)


def test_a_share_is_mirrored_while_a_checkpoint_waits_and_forgotten_with_it() -> None:
    one = recorder(mirror=0.25)
    hears(one, *range(100))
    with one.mirror():
        hears(one, *range(100, 200))
        told = one.now
        found = prompts_of(one.take_recorded())
        assert told == HearingNow(0.25, 0, 0, len(found))
        assert one.now == HearingNow(0.25, 0, 0, 0)
        hears(one, *range(200, 300))
        assert one.take_recorded() == []
    hears(one, *range(300, 400))
    assert one.take_recorded() == []
    assert all(100 <= each < 200 for each in found)
    assert 15 <= len(found) <= 35
    assert found == sorted(found, reverse=True)


def test_what_ends_before_it_is_compared_is_gone_too_if_it_never_is() -> None:
    one = recorder(mirror=1.0)
    with one.mirror():
        hears(one, 1)
    assert one.take_recorded() == []
    with one.mirror():
        assert one.take_recorded() == []


def test_no_more_than_so_many_are_mirrored() -> None:
    one = recorder(mirror=1.0)
    with one.mirror():
        hears(one, *range(MOST_MIRRORED + 10))
        found = prompts_of(one.take_recorded())
    assert found == [*reversed(range(10, MOST_MIRRORED + 10))]


def test_what_was_mirrored_is_asked_first_and_nothing_twice() -> None:
    one = recorder(mirror=1.0, replay=4)
    hears(one, 1, 2)
    with one.mirror():
        hears(one, 3)
        assert prompts_of(one.take_recorded()) == [3, 2, 1]


def test_of_several_answers_to_a_prompt_the_first_is_heard_and_each_once() -> None:
    one = recorder(replay=9)
    prompts = {index: [index // 3] for index in range(6)}
    with listening(one, request(prompts, copies=3)) as callbacks:
        for index in (5, 3, 3, 0, 1):
            end_answer(callbacks, index, ended(index))
    assert [each.answer for each in one.take_recorded()] == [(0,), (3,)]


def test_a_fault_of_ours_costs_nobody_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    one = recorder(replay=9)
    with listening(one, request({0: [1]})) as callbacks:
        end_answer(callbacks, 0, {"meta_info": None})
    assert one.take_recorded() == []
    assert "behaviour.internal_error" in caplog.text


def test_it_says_whether_it_listens() -> None:
    assert not recorder().listens
    assert recorder(mirror=0.1).listens
    assert recorder(replay=1).listens
    assert recorder().now is None
