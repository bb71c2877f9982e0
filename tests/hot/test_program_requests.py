"""What a program asks, in the engine's own schema."""

from types import MappingProxyType
from typing import Any

import pytest

from hotreload.engine.answering.probe import Probe
from hotreload.engine.answering.requests import with_ids
from hotreload.engine.capabilities import EngineLimits
from hotreload.errors import BadRequest
from hotreload.hot.answering_engine import check_whole_number, request_for, wants_probes


@pytest.mark.parametrize(
    ("prompt", "request_made"),
    [
        ("a", {"text": "a"}),
        (("a", "b"), {"text": ["a", "b"]}),
        (["a", "b"], {"text": ["a", "b"]}),
        ((1, 2), {"input_ids": [1, 2]}),
        (([1], [2]), {"input_ids": [[1], [2]]}),
        ([(1,), (2,)], {"input_ids": [[1], [2]]}),
        ([], {"input_ids": []}),
    ],
)
def test_a_prompt_may_be_a_tuple_wherever_it_may_be_a_list(
    prompt: Any, request_made: dict[str, Any]
) -> None:
    assert request_for(prompt, None, {}) == request_made | {"sampling_params": {}}


def test_any_mapping_does_as_sampling_parameters() -> None:
    cold = MappingProxyType({"temperature": 0})
    assert request_for("a", cold, {})["sampling_params"] == {"temperature": 0}
    assert request_for(("a", "b"), (cold, cold), {})["sampling_params"] == [{"temperature": 0}] * 2


@pytest.mark.parametrize("prompt", [None, 5, b"Who?", {"text": "Who?"}, {"Who?"}])
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    kind = type(prompt).__name__
    with pytest.raises(BadRequest, match=f"prompt must be a text, .* and is a {kind}"):
        request_for(prompt, None, {})


@pytest.mark.parametrize("number", ["1", 1.0, True, None])
def test_what_is_no_number_is_refused(number: object) -> None:
    with pytest.raises(BadRequest, match="at_least must be a whole number"):
        check_whole_number("at_least", number)


@pytest.mark.parametrize(
    ("sampling", "request_made"),
    [
        ({"n": 3, "top_k": 1}, {"sampling_params": {"top_k": 1}, "copies": 3}),
        ({"n": 1}, {"sampling_params": {}}),
        ({"n": None}, {"sampling_params": {}}),
        ([{"n": 2}, {"n": 2}], {"sampling_params": [{}, {}], "copies": 2}),
        ({"sampling_seed": 7}, {"sampling_params": {"sampling_seed": 7}}),
        (["no mapping"], {"sampling_params": ["no mapping"]}),
    ],
)
def test_several_answers_to_a_prompt_are_asked_for_as_the_daemons_clients_do(
    sampling: Any, request_made: dict[str, Any]
) -> None:
    assert request_for("a", sampling, {}) == {"text": "a", **request_made}


def test_the_callers_parameters_stay_the_callers() -> None:
    sampling = {"n": 3}
    request_for("a", sampling, {})
    assert sampling == {"n": 3}


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ({"n": 0}, r"sampling_params\.n must be at least 1, not 0"),
        ({"n": "2"}, r"sampling_params\.n must be a whole number, not '2'"),
        ([{"n": 2}, {}], r"sampling_params\.n: must be the same for each prompt"),
    ],
)
def test_what_is_no_count_of_answers_is_refused(sampling: Any, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        request_for("a", sampling, {})


def test_probes_are_asked_unless_there_are_to_be_none() -> None:
    assert wants_probes(None)
    assert not wants_probes(())
    assert not wants_probes([])
    some: list[Any] = [[Probe("Who?", 8)], 0, {}]
    for probes in some:
        with pytest.raises(BadRequest, match=r"probes of one update must be \(\), not"):
            wants_probes(probes)


@pytest.mark.parametrize("name", ["max_new_tokens", "temperature", "stop", "regex"])
def test_a_sampling_parameter_in_the_wrong_place_is_told_where_it_goes(name: str) -> None:
    request, limits = request_for("a", None, {name: 3}), EngineLimits(128, 20, 32)
    with pytest.raises(BadRequest, match=rf"{name}: .* sampling_params={{'{name}': …}}"):
        with_ids(request, limits, lambda text: [1], lambda *chat: [1])
