"""Requests to /v1/responses: their fields, and the chats that they mean; nothing is stored."""

from typing import Annotated, Any, Literal, TypedDict

from pydantic import Field

from hotreload.json_fields import Fields
from hotreload.server.answerer import MIN_GENERATION, rename_field
from hotreload.server.api_schema import kinds, known_fields
from hotreload.server.api_schema.kinds import FunctionFields, Kind, list_of
from hotreload.server.openai import requests

MOST_METADATA = 16
LONGEST_METADATA = 512


class ItemFields(TypedDict):
    """An item of the input: a message."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str


class FlatToolFields(FunctionFields):
    """A tool that the model may use."""

    type: Literal["function"]


_Word = Annotated[str, Field(max_length=LONGEST_METADATA)]
METADATA = Kind(
    f"an object of up to {MOST_METADATA} strings, none longer than {LONGEST_METADATA}",
    Annotated[dict[_Word, _Word], Field(max_length=MOST_METADATA)],
)
INPUT = Kind(
    "a string or a list of items, at least one",
    str | list_of(ItemFields, least=1),
    str | list_of(Any, least=1),
)
FLAT_TOOLS = Kind(kinds.TOOLS.words, list_of(FlatToolFields), kinds.TOOLS.checked_as)
_SUPPORTED = {
    "model": kinds.STRING,
    "input": INPUT,
    "instructions": kinds.STRING,
    "max_output_tokens": kinds.TOKENS,
    "metadata": METADATA,
    "stream": kinds.BOOLEAN,
    "store": kinds.BOOLEAN,
    "text": kinds.OBJECT,
    "reasoning": kinds.OBJECT,
    "tools": FLAT_TOOLS,
    "tool_choice": kinds.TOOL_CHOICE,
    "parallel_tool_calls": kinds.BOOLEAN,
    "chat_template_kwargs": kinds.OBJECT,
    **{name: kind for name, (_, kind) in known_fields.SAMPLING.items()},
    **MIN_GENERATION,
}
_ITS_OWN = known_fields.names(
    """
    access_programs background background_options context_management conversation
    enable_response_messages image include max_tool_calls previous_input_messages
    previous_response_id prompt stream_options top_logprobs truncation
    """
)
RESPONSES = known_fields.KnownFields(
    _SUPPORTED,
    (known_fields.CHAT.unsupported | _ITS_OWN) - _SUPPORTED.keys(),
    known_fields.IGNORED_FIELDS,
    other_names={
        **dict.fromkeys(("messages", "prompts", "inputs"), "input"),
        **dict.fromkeys(("max_tokens", "max_completion_tokens"), "max_output_tokens"),
        "response_format": "text",
        "reasoning_effort": "reasoning",
    },
    own_idle={
        **known_fields.CHAT.own_idle,
        "instructions": ("",),
        "reasoning": ({},),
        "text": ({},),
        "truncation": ("", "disabled"),
    },
)


_TEXTS = ("input_text", "output_text", "text")
_SAME = ("stream", "parallel_tool_calls", "chat_template_kwargs", *known_fields.SAMPLING)
"""Fields with the same name and meaning as in a chat."""


def response_request(fields: Fields) -> Fields:
    """Return a response's request as the engine's request for the next message of a chat."""
    chat: Fields = {name: fields[name] for name in _SAME if name in fields}
    if "max_output_tokens" in fields:
        chat["max_completion_tokens"] = fields["max_output_tokens"]
    chat |= _format(fields.get("text", {})) | _effort(fields.get("reasoning", {}))
    if "tools" in fields:
        chat["tools"] = [_tool(each, f"tools[{at}]") for at, each in enumerate(fields["tools"])]
    if "tool_choice" in fields:
        chat["tool_choice"] = _choice(fields["tool_choice"])
    messages = _messages(fields)
    with rename_field(_flat):
        return requests.make_chat_request(messages, chat)


def _flat(path: str) -> str | None:
    """Return the name here of a chat's field inside a tool's function."""
    return path.replace(".function.", ".", 1) if path.startswith("tools[") else None


def _messages(fields: Fields) -> list[Fields]:
    given = fields["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    messages: list[Fields] = []
    if "instructions" in fields:
        messages.append({"role": "system", "content": fields["instructions"]})
    for at, item in enumerate(items):
        message = _message(item, f"input[{at}]")
        before = messages[-1] if messages else {}
        if "tool_calls" in message and before.get("role") == "assistant":
            before["tool_calls"] = before.get("tool_calls", []) + message["tool_calls"]
        else:
            messages.append(message)
    return messages


def _message(item: Any, path: str) -> Fields:
    if not isinstance(item, dict):
        raise requests.bad_value(path, "must be an object")
    given = {name: value for name, value in item.items() if value is not None}
    kind = given.pop("type", "message")
    for label in ("id", "status", "phase"):  # copied by clients from an earlier answer
        given.pop(label, None)
    if kind == "message":
        return requests.plain_message(
            {**given, "content": _content(given.get("content"), path)}, path
        )
    if kind == "function_call":
        requests.check_no_more(given, {"call_id", "name", "arguments"}, path, "leave it out")
        function = {name: given[name] for name in ("name", "arguments") if name in given}
        call = {"type": "function", "id": given.get("call_id", ""), "function": function}
        return requests.plain_message({"role": "assistant", "tool_calls": [call]}, path)
    if kind == "function_call_output":
        requests.check_no_more(given, {"call_id", "output"}, path, "leave it out")
        content = _content(given.get("output"), path)
        result = {"role": "tool", "tool_call_id": given.get("call_id"), "content": content}
        return requests.plain_message(result, path)
    words = "must be message, function_call or function_call_output: this server stores nothing "
    raise requests.bad_value(f"{path}.type", f"{words}that another type could refer to")


def _content(content: Any, path: str) -> Any:
    """Return the content with its parts in a chat's form; others are left for it to refuse."""
    if not isinstance(content, list):
        return content
    return [
        {"type": "text", "text": part["text"]}
        if isinstance(part, dict) and part.get("type") in _TEXTS and "text" in part
        else part
        for part in content
    ]


def _format(text: Fields) -> Fields:
    requests.check_no_more(text, {"format", "verbosity"}, "text", "leave it out")
    if text.get("verbosity") not in (None, "medium"):
        raise requests.bad_value("text.verbosity", "this server does not have it; leave it out")
    match text.get("format"):
        case None:
            return {}
        case {"type": "text" | "json_object", **more} as plain if not more:
            return {"response_format": plain}
        case {"type": "json_schema", "schema": dict(schema)}:
            return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
    raise requests.bad_value(
        "text.format",
        'must be {"type": "text"}, {"type": "json_object"} or '
        '{"type": "json_schema", "name": "…", "schema": {…}}',
    )


def _effort(reasoning: Fields) -> Fields:
    requests.check_no_more(
        reasoning, {"effort"}, "reasoning", "this server does not have it; leave it out"
    )
    effort = reasoning.get("effort")
    if effort is None:
        return {}
    if not isinstance(effort, str):
        raise requests.bad_value("reasoning.effort", "must be a string")
    return {"reasoning_effort": effort}


def _tool(tool: Fields, path: str) -> Fields:
    if tool.get("type") != "function":
        raise requests.bad_value(
            f"{path}.type", "must be function: this server has no tools of its own"
        )
    function = {name: tool[name] for name in tool.keys() - {"type"}}
    return {"type": "function", "function": function}


def _choice(choice: Any) -> Any:
    match choice:
        case {"type": "function", "name": str(name), **more} if not more:
            return {"type": "function", "function": {"name": name}}
    return choice
