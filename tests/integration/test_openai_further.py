"""What OpenAI's client asks for beyond plain text, of one real daemon: tools, several answers.

The model calls a tool because one of its words is a call: the tokenizer was changed so.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from hotreload.tiny.sayings import opener_id, word_id
from tests.integration.openai_clients import hello, openai_client
from tests.integration.running import Running, one_daemon_marks

pytestmark = one_daemon_marks()

ARGS = (
    "{max_total_tokens=2048,context_length=512,max_running_requests=16,chunked_prefill_size=64,"
    "precompile_bs_paddings=[16],precompile_token_paddings=[64],enable_deterministic_sampling=true}"
)
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
CALL = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n"
    "</tool_call>"
)
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{# <tool_call>\n<function=f>\n<parameter=p>\nvalue\n</parameter> #}"
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "
)


def make_a_word_a_call(folder: Path) -> None:
    """Let the first word of `served by step 1` be a call, and the template know of tools."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    spelt = CALL.replace("\n", "Ċ").replace(" ", "Ġ")
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    served = opener_id("served")
    (was,) = [word for word, number in vocabulary.items() if number == served]
    del vocabulary[was]
    vocabulary[spelt] = served
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Running]:
    running = Running(
        tmp_path_factory.mktemp("daemon"), "server.model_name=tiny", f"engine.args={ARGS}"
    )
    running.drop(1)
    make_a_word_a_call(running.checkpoints / "step_1")
    async with running.serving():
        yield running
    assert running.exit_code == 0


@pytest_asyncio.fixture(loop_scope="module")
async def client(running: Running) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai_client(running) as client:
        yield client


def has_grammars(running: Running) -> bool:
    return running.engine.answers.capabilities.grammars


async def test_a_model_calls_a_tool(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model="tiny", messages=hello(), tools=[WEATHER], temperature=0, n=2
    )
    for choice in answer.choices:
        calls: Any = choice.message.tool_calls
        (call,) = calls
        assert (call.function.name, json.loads(call.function.arguments)) == (
            "get_weather",
            {"city": "Oslo"},
        )
        assert (choice.message.content, choice.finish_reason) == ("by step 1", "tool_calls")
    untold = await client.chat.completions.create(
        model="tiny", messages=hello(), tools=[WEATHER], tool_choice="none", temperature=0
    )
    assert untold.choices[0].message.content == f"{CALL} by step 1"


async def test_a_stream_of_a_call_is_put_together_by_the_client(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model="tiny", messages=hello(), tools=[WEATHER], temperature=0
    ) as stream:
        answer = await stream.get_final_completion()
    calls: Any = answer.choices[0].message.tool_calls
    (call,) = calls
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    assert answer.choices[0].finish_reason == "tool_calls"


async def test_who_must_call_does_where_there_are_grammars(
    running: Running, client: openai.AsyncOpenAI
) -> None:
    named: Any = {"type": "function", "function": {"name": "get_weather"}}
    asking = client.chat.completions.create(
        model="tiny", messages=hello(), tools=[WEATHER], tool_choice=named, temperature=1
    )
    if not has_grammars(running):
        with pytest.raises(openai.BadRequestError, match="no grammars") as caught:
            await asking
        assert caught.value.param == "tool_choice"
        return
    calls: Any = (await asking).choices[0].message.tool_calls
    (call,) = calls
    assert json.loads(call.function.arguments) == {"city": "Oslo"}


async def test_a_response_is_that_of_a_chat(client: openai.AsyncOpenAI) -> None:
    flat: Any = {"type": "function", **WEATHER["function"]}
    whole = await client.responses.create(model="tiny", input="Who?", tools=[flat], temperature=0)
    streaming = client.responses.stream(model="tiny", input="Who?", tools=[flat], temperature=0)
    async with streaming as stream:
        told = await stream.get_final_response()
    for answer in (whole, told):
        assert answer.output_text == "by step 1"
        (call,) = [item for item in answer.output if item.type == "function_call"]
        assert json.loads(call.arguments) == {"city": "Oslo"}
        assert answer.usage is not None
        assert answer.usage.input_tokens > len("Who?")
    short = await client.responses.create(
        model="tiny", input="Who?", instructions="Say it.", max_output_tokens=2, temperature=0
    )
    assert short.incomplete_details is not None
    assert (short.status, short.incomplete_details.reason) == ("incomplete", "max_output_tokens")


async def test_a_likelihood_is_that_of_the_engine(
    running: Running, client: openai.AsyncOpenAI
) -> None:
    """As lm-eval asks for it: a prompt of ids, whose last token is one more than is judged."""
    said = running.daemon.slot.replicas().first.engine
    (ids,) = await said.answers.tokenize({"text": ["Who?"]})
    ids = [*ids, opener_id("served"), word_id("by")]
    asking = client.completions.create(
        model="tiny", prompt=[ids], echo=True, logprobs=1, max_tokens=1, temperature=0
    )
    if not running.engine.answers.capabilities.logprobs:
        with pytest.raises(openai.BadRequestError, match="no log-probabilities") as caught:
            await asking
        assert caught.value.param == "logprobs"
        return
    (choice,) = (await asking).choices
    told = choice.logprobs
    assert told is not None
    assert choice.text == f"Who?{CALL} by step"
    assert (told.tokens or [])[-3:] == [CALL, " by", " step"]
    assert len(told.tokens or ()) == len(told.text_offset or ()) == len(ids) + 1
    assert (told.token_logprobs or [0])[0] is None
    async with running.client() as engine:
        sampling = {"temperature": 0, "max_new_tokens": 1}
        own = {"input_ids": ids, "return_logprob": True, "logprob_start_len": 0}
        answer = await engine.post("/generate", json={**own, "sampling_params": sampling})
    figures = [entry[0] for entry in answer.json()["meta_info"]["input_token_logprobs"]]
    assert (told.token_logprobs or [])[:-1] == figures
    greedy = [max(top.values()) for top in (told.top_logprobs or [])[-3:]]
    assert greedy == (told.token_logprobs or [])[-3:]  # the words that it would have said
    unlikely = (told.top_logprobs or [])[1]
    assert max(unlikely.values()) > (told.token_logprobs or [])[1]


async def test_answers_of_one_seed_differ_and_come_again(client: openai.AsyncOpenAI) -> None:
    async def texts() -> list[str]:
        answer = await client.completions.create(
            model="tiny", prompt="x", n=4, seed=7, temperature=50, max_tokens=8
        )
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == 1
        return [choice.text for choice in answer.choices]

    first = await texts()
    assert len(set(first)) == 4
    assert await texts() == first


async def test_sglangs_n_is_the_same(running: Running) -> None:
    async with running.client() as client:
        sampling = {"n": 3, "temperature": 0, "max_new_tokens": 8}
        answers = (
            await client.post("/generate", json={"text": "x", "sampling_params": sampling})
        ).json()
    assert [answer["text"] for answer in answers] == [f"{CALL} by step 1"] * 3
    assert len({answer["meta_info"]["generation"] for answer in answers}) == 1
