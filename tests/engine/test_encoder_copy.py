"""What encodes prompts goes to another process, and does there what the engine would do."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hotreload.engine.answering.encoder_copy import CopiedEncoder, EncoderCopy, copy_of
from hotreload.engine.answering.prompts import Prompts
from hotreload.engine.answering.sampling_params import GRAMMARS
from hotreload.engine.capabilities import Capabilities, EngineLimits
from hotreload.errors import BadRequest
from hotreload.tiny import write_tiny
from tests.engine.test_prompts import tokenizer_of

LIMITS = EngineLimits(vocabulary=2000, input_tokens=200, total_tokens=256)
SAMPLING = frozenset({"temperature", "max_new_tokens", "stop"}) | GRAMMARS.keys()
CAN = Capabilities(logprobs=True, grammars=True, seeds=False, sampling=SAMPLING)
HELLO = [{"role": "user", "content": "hello"}]
CHAT: dict[str, Any] = {"messages": HELLO, "sampling_params": {"temperature": 0}}
LONG = "a" * 1500
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def engines(folder: Path) -> Prompts:
    return Prompts(tokenizer_of(folder), LIMITS, CAN)


def copied(folder: Path, limits: EngineLimits = LIMITS) -> EncoderCopy:
    tokenizer = tokenizer_of(folder)
    Prompts(tokenizer, limits, CAN)  # as in an engine: from then on nothing in it changes
    copy = copy_of(tokenizer, limits, CAN)
    assert copy is not None
    return copy


@pytest.fixture(scope="module")
def encoder(folder: Path) -> CopiedEncoder:
    copy = copied(folder)
    return CopiedEncoder(copy.name, copy.data)


@pytest.mark.parametrize(
    "request_body",
    [
        {"text": "hello"},
        {"text": "hello", "input_ids": None, "stream": True, "rid": "mine"},
        {
            "text": "Gr\u00fc\u00dfe \u6f22 \U0001f600",
            "sampling_params": {"stop": ["x"], "max_new_tokens": 3},
        },
        {"text": ["a", "bc"], "sampling_params": [{"temperature": 0}, {"temperature": 1}]},
        {"text": ["a"], "rid": "mine", "return_logprob": True, "top_logprobs_num": 2},
        {"text": "hello", "copies": 3, "sampling_params": {"max_new_tokens": 5}},
        {"text": "a" * 190},
        {"text": "hello", "sampling_params": {"json_schema": {"type": "object"}}},
        CHAT,
        CHAT | {"template_args": {"thinking": True}, "copies": 2},
        CHAT | {"messages": [*HELLO, {"role": "assistant", "content": "hi"}, *HELLO]},
    ],
)
async def test_what_was_encoded_elsewhere_is_what_the_engine_makes_of_the_texts(
    engines: Prompts, encoder: CopiedEncoder, request_body: dict[str, Any]
) -> None:
    encoded = await encoder.encode(request_body)
    assert encoded is not None
    assert encoded.keys().isdisjoint({"text", "messages", "template_args"})
    assert await engines.prepare(encoded) == await engines.prepare(request_body)


@pytest.mark.parametrize(
    "request_body",
    [
        {"text": "hello", "colour": "red"},
        {"text": "hello", "stream": "yes", "rid": 7},
        {"text": LONG, "rid": "x" * 129},
        {"text": LONG, "sampling_params": {"warmth": 1}},
        {"text": "hello", "sampling_params": {"warmth": 1}},
        {"text": "hello", "sampling_params": {"temperature": "hot"}, "top_logprobs_num": "many"},
        {"text": "hello", "return_logprob": True, "top_logprobs_num": "many"},
        {"text": "hello", "sampling_params": {"max_new_tokens": 252}},
        {"text": "hello", "input_ids": [1]},
        {"text": "hello", "sampling_params": {"max_new_tokens": 2**80}},
        {"text": "\ud800"},
        {"text": ""},
        {"text": []},
        {"text": ["a", LONG]},
        {"text": ["a", 5]},
        {"text": ["a", "b"], "rid": ["x"], "sampling_params": [{}]},
        {"text": "hello", "sampling_params": {"regex": " "}},
        CHAT | {"messages": [{"role": "user", "content": LONG}]},
        CHAT | {"messages": HELLO, "template_args": {"tools": "x"}},
        CHAT | {"sampling_params": {"warmth": 1}},
    ],
)
async def test_it_refuses_what_the_engine_refuses_in_the_same_words(
    engines: Prompts, encoder: CopiedEncoder, request_body: dict[str, Any]
) -> None:
    with pytest.raises(BadRequest) as here:
        await engines.prepare(request_body)
    with pytest.raises(BadRequest) as there:
        await encoder.encode(request_body)
    told = (str(there.value), there.value.code, there.value.param, there.value.findings)
    assert told == (str(here.value), here.value.code, here.value.param, here.value.findings)


@pytest.mark.parametrize(
    "request_body",
    [
        CHAT | {"tools": [TOOL]},
        CHAT | {"messages": [*HELLO, {"role": "tool", "content": "7"}]},
        CHAT | {"messages": [{"role": "assistant", "content": "", "tool_calls": []}, *HELLO]},
    ],
)
async def test_it_leaves_tools_to_the_engine(
    encoder: CopiedEncoder, request_body: dict[str, Any]
) -> None:
    assert await encoder.encode(request_body) is None


@pytest.mark.parametrize(
    "request_body",
    [CHAT | {"messages": []}, {"input_ids": [1, 2]}, {"input_ids": [10**9]}, {"input_ids": []}, {}],
)
async def test_it_has_nothing_to_encode_in_ids_and_leaves_their_check_to_the_engine(
    encoder: CopiedEncoder, request_body: dict[str, Any]
) -> None:
    assert await encoder.encode(request_body) is request_body
    encoder.make_texts(request_body)


@pytest.mark.parametrize("ids", [[10**9], [-1], [2000], [1, 1.5], ["1"], [True], [2**80], b"ids"])
async def test_ids_that_nobody_could_have_made_of_a_text_do_not_reach_the_engine(
    engines: Prompts, ids: Any
) -> None:
    """Whoever says that he encoded a text: such an id is NaN in everybody's KV pool."""
    with pytest.raises(BadRequest, match="input_ids"):
        await engines.prepare({"input_ids": ids})


def test_copies_of_what_encodes_alike_have_one_name(folder: Path, tmp_path: Path) -> None:
    elsewhere = write_tiny(tmp_path / "another")
    assert copied(folder) == copied(elsewhere, replace(LIMITS, at_once=9))
    smaller = EngineLimits(vocabulary=2000, input_tokens=100, total_tokens=128)
    assert copied(folder).name != copied(folder, smaller).name
    config = elsewhere / "tokenizer_config.json"
    config.write_text(config.read_text().replace("assistant", "helper"))
    assert copied(folder).name != copied(elsewhere).name


def test_a_tokenizer_that_cannot_be_copied_is_the_engines_alone(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = tokenizer_of(folder)
    tokenizer.of_its_own = lambda: None
    assert copy_of(tokenizer, LIMITS, CAN) is None
    assert "prompts.cannot_be_encoded_elsewhere" in caplog.text
