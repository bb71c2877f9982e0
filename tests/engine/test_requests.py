"""What reaches the engine, and what is refused with a reason before it can."""

from collections.abc import Mapping
from typing import Any

import pytest

from hotreload.engine.answering.items import Parsed
from hotreload.engine.answering.requests import Messages, parse
from hotreload.engine.answering.sampling_params import GRAMMARS, grammar_of
from hotreload.engine.capabilities import Capabilities, EngineLimits
from hotreload.errors import BadRequest

LIMITS = EngineLimits(vocabulary=128, input_tokens=20, total_tokens=32)
SAMPLING = frozenset(
    {"temperature", "max_new_tokens", "min_new_tokens", "stop", "stop_token_ids", "n", "ignore_eos"}
)
OLD = Capabilities(logprobs=False, grammars=False, seeds=False, sampling=SAMPLING | GRAMMARS.keys())
NEW = Capabilities(logprobs=True, grammars=True, seeds=True, sampling=SAMPLING | GRAMMARS.keys())


def encode(text: str) -> list[int]:
    return list(text.encode("utf-8"))


def chat(messages: Messages, arguments: Mapping[str, Any], tools: Any) -> list[int]:
    return encode("".join(message["content"] for message in messages))


def parsed(request: dict[str, Any], can: Capabilities = OLD) -> Parsed:
    return parse(request, limits=LIMITS, can=can, encode=encode, chat=chat)


def sampling(**params: Any) -> dict[str, Any]:
    return {"text": "hi", "sampling_params": params}


@pytest.mark.parametrize(
    ("request_body", "named"),
    [
        ({}, "text, input_ids"),
        ({"text": "a", "input_ids": [1]}, "text, input_ids"),
        ({"text": 5}, "text"),
        ({"text": []}, "text"),
        ({"text": "\ud800"}, "text"),
        ({"text": ""}, "text"),
        ({"text": "a" * 20}, "20 tokens"),
        ({"text": "a" * 1025}, "1025 characters"),
        ({"input_ids": []}, "input_ids"),
        ({"input_ids": [[1], []]}, "input_ids"),
        ({"input_ids": "abc"}, "input_ids"),
        ({"input_ids": [128]}, "128 is no token id"),
        ({"input_ids": [-1]}, "-1 is no token id"),
        ({"input_ids": [True]}, "True is no token id"),
        ({"input_ids": [1.0]}, "1.0 is no token id"),
        ({"input_ids": [[1], 2]}, "input_ids"),
        ({"text": "hi", "colour": "red"}, "colour"),
        ({"text": "hi", "stream": "yes"}, "stream"),
        ({"text": "hi", "rid": 7}, "rid"),
        ({"text": "hi", "rid": "x" * 129}, "rid: 129 characters are too many"),
        ({"text": ["a", "b"], "rid": ["x", "x" * 129]}, "rid: 129 characters"),
        ({"text": ["a", "b"], "rid": ["x"]}, "rid: 1 values for 2 prompts"),
        ({"text": "hi", "sampling_params": 3}, "sampling_params"),
        ({"text": ["a", "b"], "sampling_params": [{}]}, "sampling_params: 1 values"),
        (sampling(warmth=1), "sampling_params.warmth"),
        (sampling(temperature="hot"), "sampling_params.temperature"),
        (sampling(temperature=float("nan")), "sampling_params.temperature"),
        (sampling(temperature=float("inf")), "sampling_params.temperature"),
        (sampling(temperature=10**400), "sampling_params.temperature"),
        (sampling(max_new_tokens=1.5), "sampling_params.max_new_tokens"),
        (sampling(max_new_tokens=0, min_new_tokens=1), "sampling_params.min_new_tokens"),
        (sampling(max_new_tokens=-1), "sampling_params.max_new_tokens"),
        (sampling(max_new_tokens=30), "max_new_tokens"),
        (sampling(max_new_tokens=2**80), "sampling_params.max_new_tokens"),
        (sampling(max_new_tokens=2, min_new_tokens=3), "sampling_params.min_new_tokens"),
        (sampling(ignore_eos="yes"), "sampling_params.ignore_eos"),
        (sampling(n=2), "sampling_params.n"),
        (sampling(stop=[""]), "sampling_params.stop"),
        (sampling(stop=5), "sampling_params.stop"),
        (sampling(stop=["x"] * 33), "sampling_params.stop: 33 strings are too many"),
        (sampling(stop="x" * 257), "sampling_params.stop: .* more than 256 characters"),
        (sampling(stop_token_ids=[128]), "sampling_params.stop_token_ids"),
        (
            sampling(stop_token_ids=[1] * 257),
            "sampling_params.stop_token_ids: 257 ids are too many",
        ),
        (sampling(stop_token_ids=0), "sampling_params.stop_token_ids"),
        (
            {"text": ["a"] * 9, "sampling_params": {"stop": ["x" * 256] * 32}},
            "sampling_params.stop: 73728 characters for all prompts, there may be 65536",
        ),
        (
            {"text": "a", "copies": 9, "sampling_params": {"stop": ["x" * 256] * 32}},
            "sampling_params.stop: 73728 characters for all prompts",
        ),
        (sampling(json_schema="{}"), "sampling_params.json_schema"),
        (sampling(regex="a"), "sampling_params.regex"),
        ({"text": "hi", "return_logprob": True}, "return_logprob"),
        ({"text": ["a", "b"], "return_logprob": [False, True]}, "return_logprob"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_by_name(
    request_body: dict[str, Any], named: str
) -> None:
    with pytest.raises(BadRequest, match=named):
        parsed(request_body)


@pytest.mark.parametrize(
    ("request_body", "named"),
    [
        ({"logprob_start_len": 2}, "logprob_start_len"),
        ({"logprob_start_len": "0"}, "logprob_start_len"),
        ({"top_logprobs_num": -1}, "top_logprobs_num"),
        ({"top_logprobs_num": 129}, "top_logprobs_num"),
        ({"token_ids_logprob": [128]}, "token_ids_logprob"),
        ({"return_text_in_logprobs": "yes"}, "return_text_in_logprobs"),
    ],
)
def test_log_probabilities_are_asked_for_within_bounds(
    request_body: dict[str, Any], named: str
) -> None:
    with pytest.raises(BadRequest, match=named):
        parsed({"text": "hi", "return_logprob": True, **request_body}, NEW)


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"json_schema": 5}, "json_schema: must be a string or an object"),
        ({"regex": {}}, "regex: must be a string"),
        ({"ebnf": []}, "ebnf: must be a string"),
        ({"structural_tag": ["a"]}, "structural_tag: must be a string or an object"),
        ({"structural_tag": ""}, "structural_tag: is empty"),
        ({"ebnf": " "}, "ebnf: is empty"),
        ({"regex": "a" * 65_537}, "regex: 65537 characters are too many"),
        ({"json_schema": {"const": "a" * 65_536}}, "json_schema: 65549 characters"),
        ({"regex": "a", "structural_tag": "{}"}, "sampling_params: give one of ebnf, json_schema"),
    ],
)
def test_a_grammar_is_one_text_of_a_bounded_length(params: dict[str, Any], named: str) -> None:
    with pytest.raises(BadRequest, match=named):
        parsed(sampling(**params), NEW)


def test_a_schema_may_be_an_object() -> None:
    (item,) = parsed(sampling(json_schema={"type": "null"}), NEW).items
    assert item.sampling_params == {"json_schema": '{"type": "null"}'}
    assert grammar_of(item.sampling_params) == ("json", '{"type": "null"}')


def test_what_is_wrong_is_shown_cut() -> None:
    long = "x" * 10**6
    for wrong in (
        sampling(temperature=long),
        sampling(ignore_eos=[long]),
        sampling(**{long: 1}),
        {"input_ids": [long]},
        {"text": "a", long: 1},
    ):
        with pytest.raises(BadRequest) as caught:
            parsed(wrong)
        assert len(str(caught.value)) < 250
        assert len(caught.value.param or "") < 100


def test_parameters_that_all_prompts_share_are_checked_once() -> None:
    batch = parsed({"text": ["a"] * 3, "sampling_params": {"stop": ["x"]}})
    assert len({id(item.sampling_params) for item in batch.items}) == 1


def test_an_engine_that_can_is_asked_for_all_it_can() -> None:
    request = {**sampling(json_schema="{}", stop="x"), "return_logprob": True}
    (item,) = parsed({**request, "logprob_start_len": 0, "top_logprobs_num": 2}, NEW).items
    assert item.sampling_params == {"json_schema": "{}", "stop": "x"}
    assert item.logprobs == {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}


def test_a_batch_has_a_value_for_each_prompt_or_one_for_all() -> None:
    each = [{"max_new_tokens": 1}, {"max_new_tokens": 2}]
    batch = parsed({"text": ["a", "b"], "sampling_params": each, "rid": "r", "stream": True})
    assert (batch.is_batch, batch.stream) == (True, True)
    assert [item.input_ids for item in batch.items] == [[97], [98]]
    assert [item.sampling_params for item in batch.items] == each
    assert [item.rid for item in batch.items] == ["r_0", "r_1"]


def test_an_answer_of_no_token_takes_the_room_of_one_and_alone_in_its_batch() -> None:
    each = [{"max_new_tokens": 0, "stop": "x"}, {"max_new_tokens": 2}]
    none, two = parsed({"text": ["a", "b"], "sampling_params": each}).items
    assert none.sampling_params == {"max_new_tokens": 1, "stop": "x"}
    assert (none.is_prompt_alone, two.is_prompt_alone) == (True, False)
    limits = EngineLimits(vocabulary=128, input_tokens=20, total_tokens=3)
    with pytest.raises(BadRequest, match="more than the context of 3"):
        parse(sampling(max_new_tokens=0), limits=limits, can=OLD, encode=encode, chat=chat)


def test_a_parameter_that_is_null_is_as_if_it_were_not_there() -> None:
    (item,) = parsed({**sampling(temperature=None, regex=None), "return_logprob": None}).items
    assert (item.sampling_params, item.logprobs) == ({}, {})
