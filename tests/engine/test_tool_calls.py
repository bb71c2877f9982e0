"""Tools of a chat: how they are shown, which format a model writes its calls in, and their reading.

The parsers are upstream's: what the installed release has of them is tried with all its formats.
"""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hotreload.engine.answering.prompts import Prompts
from hotreload.engine.answering.tool_calls import (
    CallsOfAnswers,
    ListedCalls,
    ToolFormat,
    WrittenCalls,
    format_of,
    schema_of,
)
from hotreload.engine.upstream.tool_calls import known_parsers, parse_with, strict_tag
from hotreload.errors import BadRequest, ConfigError
from tests.engine.test_prompts import CAN, HELLO, LIMITS, with_template

pytestmark = pytest.mark.real_engine

Tool = dict[str, Any]
ARGUMENTS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
}
WEATHER: Tool = {"type": "function", "function": {"name": "get_weather", "parameters": ARGUMENTS}}
TIME: Tool = {
    "type": "function",
    "function": {"name": "get_time", "parameters": {"type": "object"}},
}
SAYS = {
    "qwen25": '\n{{"name": "{name}", "arguments": {{"city": "{city}", "days": 3}}}}\n',
    "qwen3_coder": "\n<function={name}>\n<parameter=city>\n{city}\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n",
    "mimo": "\n<function={name}>\n<parameter=city>{city}</parameter>\n"
    "<parameter=days>3</parameter>\n</function>\n",
    "glm45": "{name}\n<arg_key>city</arg_key>\n<arg_value>{city}</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n",
    "glm47": "{name}<arg_key>city</arg_key><arg_value>{city}</arg_value>"
    "<arg_key>days</arg_key><arg_value>3</arg_value>",
}
"""A call as each family of models writes it, between the signs."""
SHOWS = "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
TEMPLATES = {
    "qwen25": SHOWS
    + '<tool_call>\\n{\\"name\\": <function-name>, \\"arguments\\": <args-json-object>}',
    "qwen3_coder": SHOWS + "<tool_call>\n<function=f>\n<parameter=p>\nvalue\n</parameter>",
    "mimo": SHOWS + "<tool_call>\n<function=f>\n<parameter=p>value</parameter>",
    "glm45": SHOWS + "<tool_call>{function-name}\\n<arg_key>{arg-key-1}</arg_key>\\n",
    "glm47": SHOWS + "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>",
    None: SHOWS + "[TOOL_CALLS]",
}
"""What the templates of each family say of calls."""


def said(parser: str, city: str, name: str = "get_weather") -> str:
    return f"<tool_call>{SAYS[parser].format(name=name, city=city)}</tool_call>"


def as_json(text: str) -> list[dict[str, str]]:
    try:
        call = json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    except ValueError:
        return []
    return [{"name": call["name"], "arguments": json.dumps(call["arguments"])}]


def calling(
    template: str | None = None, *, known: Any = ("qwen25",), tag: str | None = None, **more: Any
) -> ToolFormat:
    template = TEMPLATES["qwen25"] if template is None else template
    more = {"grammars": True, **more}
    return ToolFormat(template, frozenset(known), lambda *_: as_json, lambda *_: tag, **more)


def asked(**more: Any) -> dict[str, Any]:
    return {"messages": HELLO, "sampling_params": {}, "tools": [WEATHER], **more}


@pytest.mark.parametrize("size", [1, 2, 9, 1000])
@pytest.mark.parametrize("parser", sorted(known_parsers()))
def test_calls_are_read_whole_wherever_the_pieces_end(parser: str, size: int) -> None:
    text = f"Hi there \n{said(parser, 'Oslo')}\n{said(parser, 'Rome')}\n"
    reader = WrittenCalls(parse_with(parser, [WEATHER, TIME]))
    told = [
        reader.read(text[:end], is_whole=end >= len(text))
        for end in range(size, len(text) + size, size)
    ]
    assert all(len(after[0]) >= len(before[0]) for before, after in pairwise(told))
    assert all(beside in "Hi there" and "<" not in beside for beside, _ in told)
    beside, calls = told[-1]
    assert beside == "Hi there"
    assert [call["name"] for call in calls] == ["get_weather"] * 2
    assert [json.loads(call["arguments"]) for call in calls] == [
        {"city": "Oslo", "days": 3},
        {"city": "Rome", "days": 3},
    ]


@pytest.mark.parametrize("parser", sorted(known_parsers()))
@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\n[1]\n</tool_call>",
        "<tool_call></tool_call>",
        '<tool_call>\n{"name": "get_weather", "arguments": "x"}\n</tool_call>',
        "<tool_call>\nno call at all",
        "a < b, <tool, </tool_call>",
        "<tool_call>" + "(" * 10_000 + "</tool_call>",
    ],
)
def test_what_is_no_call_is_text(parser: str, text: str) -> None:
    reader = WrittenCalls(parse_with(parser, [WEATHER]))
    assert reader.read(text, is_whole=True) == (text, [])


@pytest.mark.parametrize("parser", sorted(known_parsers()))
def test_a_call_of_a_function_that_nobody_gave_is_text(parser: str) -> None:
    text = said(parser, "Oslo", "rm_rf")
    assert WrittenCalls(parse_with(parser, [WEATHER])).read(text, is_whole=True) == (text, [])


def test_text_without_calls_keeps_its_blanks_and_is_told_before_its_end() -> None:
    reader = WrittenCalls(as_json)
    assert reader.read(" a <tool", is_whole=False) == (" a", [])
    assert reader.read(" a <tools> b \n", is_whole=False) == (" a <tools> b", [])
    assert reader.read(" a <tools> b \n", is_whole=True) == (" a <tools> b \n", [])


def test_a_call_that_was_begun_anew_is_read() -> None:
    text = f"<tool_call>\nno: {said('qwen25', 'Oslo')}"
    beside, calls = WrittenCalls(as_json).read(text, is_whole=True)
    assert (beside, len(calls)) == ("<tool_call>\nno:", 1)


def test_text_after_a_call_is_told_too() -> None:
    reader = WrittenCalls(as_json)
    text = f"{said('qwen25', 'Oslo')}\n so it is"
    assert reader.read(text[:-3], is_whole=False)[0] == "so it"
    beside, calls = reader.read(text, is_whole=True)
    assert (beside, len(calls)) == ("so it is", 1)


def test_a_list_of_calls_is_told_when_it_is_whole() -> None:
    text = '[{"name": "get_weather", "parameters": {"city": "Oslo"}}]'
    assert ListedCalls().read(text, is_whole=False) == ("", [])
    call = {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    assert ListedCalls().read(text, is_whole=True) == ("", [call])
    for short in (text[:-1], '{"name": "x"}', "[1]", "7"):
        assert ListedCalls().read(short, is_whole=True) == (short, [])


def test_each_answer_of_several_has_its_own_calls() -> None:
    told = CallsOfAnswers(lambda: WrittenCalls(as_json))
    end: dict[str, Any] = {"finish_reason": {"type": "stop"}}
    call = said("qwen25", "Oslo")
    one, two = told.add_calls([{"text": call, "meta_info": end}, {"text": "no", "meta_info": end}])
    assert (one["text"], len(one["tool_calls"])) == ("", 1)
    assert (two["text"], two["tool_calls"]) == ("no", [])
    third = told.add_calls({"text": call, "index": 2, "meta_info": end})
    assert len(third["tool_calls"]) == 1


@pytest.mark.parametrize("parser", TEMPLATES)
def test_the_template_says_how_its_model_writes_calls(parser: str | None) -> None:
    known = {each for each in TEMPLATES if each}
    if parser is not None:
        assert format_of(TEMPLATES[parser].replace("\\n", "\n")) == parser
    if parser is None:
        with pytest.raises(BadRequest, match="nobody here knows how this model writes its calls"):
            calling(TEMPLATES[parser], known=known).arrange(asked())
        return
    assert calling(TEMPLATES[parser], known=known).arrange(asked())[1] is not None


def test_a_family_that_this_release_cannot_parse_is_refused_by_name() -> None:
    with pytest.raises(BadRequest, match="as qwen25, and this engine can parse qwen3_coder") as no:
        calling(known=["qwen3_coder"]).arrange(asked())
    assert no.value.param == "tools"
    own = calling(TEMPLATES[None], known=["qwen3_coder"], asked="qwen3_coder")
    assert own.arrange(asked())[1] is not None
    with pytest.raises(ConfigError, match="this engine has no 'nonsense'; it has qwen3_coder"):
        calling(known=["qwen3_coder"], asked="nonsense")


def test_a_template_that_shows_no_tools_is_told_of_none() -> None:
    plain = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    result = [*HELLO, {"role": "tool", "content": "12 degrees"}]
    for request, param in ((asked(), "tools"), ({"messages": result}, "messages")):
        with pytest.raises(BadRequest, match="shows it no tools; leave them out") as caught:
            calling(plain).arrange(request)
        assert caught.value.param == param
    assert calling(plain).arrange({"messages": HELLO}) == ({"messages": HELLO}, None)
    with pytest.raises(BadRequest, match="tools: only with messages"):
        calling().arrange({"text": "a", "tools": [WEATHER]})


def test_who_must_call_is_held_to_it_by_a_grammar() -> None:
    request, make = calling(TEMPLATES[None]).arrange(asked(tool_choice="one"))
    assert make is ListedCalls
    assert "tool_choice" not in request
    schema = json.loads(request["sampling_params"]["json_schema"])
    assert schema == schema_of([WEATHER], "one")
    assert (schema["minItems"], schema["maxItems"]) == (1, 1)
    assert "maxItems" not in schema_of([WEATHER], "required")
    with pytest.raises(BadRequest, match="has no grammars, so nothing makes a model call") as none:
        calling(grammars=False).arrange(asked(tool_choice="required"))
    assert none.value.param == "tool_choice"
    with pytest.raises(BadRequest, match="not together with a format of the answer"):
        calling().arrange(asked(tool_choice="required", sampling_params={"regex": "a"}))


STRICT: Tool = {"type": "function", "function": {**WEATHER["function"], "strict": True}}


def test_strict_tools_are_held_to_their_schemas_or_refused() -> None:
    request, _ = calling(tag="<tag>").arrange(asked(tools=[WEATHER, STRICT]))
    assert request["sampling_params"] == {"structural_tag": "<tag>"}
    assert request["template_args"] == {"enable_thinking": False}
    own = asked(tools=[STRICT], template_args={"enable_thinking": True})
    assert calling(tag="<tag>").arrange(own)[0]["template_args"] == {"enable_thinking": True}
    with pytest.raises(BadRequest, match='leave strict out, or use tool_choice "required"'):
        calling(tag=None).arrange(asked(tools=[STRICT]))
    with pytest.raises(BadRequest, match=r"leave strict out$"):
        calling(tag="<tag>", grammars=False).arrange(asked(tools=[STRICT]))
    with pytest.raises(BadRequest, match="not together with a format of the answer"):
        calling(tag="<tag>").arrange(asked(tools=[STRICT], sampling_params={"regex": "a"}))
    assert calling().arrange(asked(tools=[STRICT], tool_choice="required"))[1] is ListedCalls


@pytest.mark.parametrize("parser", sorted(known_parsers()))
def test_only_calls_in_json_have_a_grammar(parser: str) -> None:
    tag = strict_tag(parser, [WEATHER, STRICT])
    assert (tag is not None) == (parser == "qwen25")
    if tag is not None:
        held, free = [each["schema"] for each in json.loads(tag)["structures"]][::-1]
        assert (held, free) == (ARGUMENTS, {})


def test_what_schemas_refer_to_is_found_from_the_root_of_theirs() -> None:
    def tool(name: str, city: str) -> Tool:
        parameters = {"type": "object", "properties": {"c": {"$ref": "#/$defs/City"}}}
        parameters["$defs"] = {"City": {"type": city}}
        return {"type": "function", "function": {"name": name, "parameters": parameters}}

    schema = schema_of([tool("a", "string"), tool("b", "string")], "required")
    assert schema["$defs"] == {"City": {"type": "string"}}
    with pytest.raises(BadRequest, match=r"\$defs.City means two things"):
        schema_of([tool("a", "string"), tool("b", "number")], "required")
    odd: Tool = {"type": "function", "function": {"name": "a", "parameters": {"$defs": [1]}}}
    with pytest.raises(BadRequest, match=r"\$defs of parameters must be an object"):
        schema_of([odd], "required")


async def test_the_template_gets_the_tools_and_what_they_answered(tmp_path: Path) -> None:
    template = SHOWS + "{% for m in messages %}{{ m | tojson }}\n{% endfor %}"
    tokenizer = with_template(tmp_path / "m", template)
    call = {"type": "function", "function": {"name": "get_time", "arguments": {"zone": "UTC"}}}
    messages = [
        *HELLO,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    own = calling(template, known=["qwen25"], asked="qwen25")
    front = Prompts(tokenizer, LIMITS, CAN, calling=own)
    parsed = await front.prepare(asked(messages=messages))
    prompt = tokenizer.decode(parsed.items[0].input_ids)
    assert [json.loads(line) for line in prompt.strip().splitlines()] == [WEATHER, *messages]
    assert parsed.calls is not None
    assert (await front.prepare({"text": "a"})).calls is None
