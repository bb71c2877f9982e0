"""Translates OpenAI's requests to the engine's schema, and field names in refusals back.

Messages and tools of a chat get the form that a chat template takes.
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from hotreload.errors import BadRequest
from hotreload.json_fields import Fields
from hotreload.server.api_schema.kinds import is_integer
from hotreload.server.api_schema.known_fields import EMPTY_VALUES, SAMPLING, is_idle
from hotreload.server.api_schema.operation import shorten

COMPLETION_TOKENS = 16
"""OpenAI's default of max_tokens for /v1/completions; a chat may fill the context."""
ANY_OBJECT_SCHEMA = '{"type":"object"}'

_ENGINE_NAMES = {
    **{f"sampling_params.{theirs}": ours for ours, (theirs, _) in SAMPLING.items()},
    "sampling_params.max_new_tokens": "max_tokens",
    "sampling_params.json_schema": "response_format",
    "sampling_params.structural_tag": "tools",
    "max_new_tokens": "max_tokens",
    "return_logprob": "logprobs",
    "top_logprobs_num": "logprobs",
    "template_args": "chat_template_kwargs",
    "text": "prompt",
    "input_ids": "prompt",
    "messages": "messages",
}

_OTHER_NAMES = {
    "max_tokens": ("max_completion_tokens", "max_output_tokens"),
    "response_format": ("text", "tools"),
    "messages": ("input",),
}
"""Alternative names of a field: a refusal uses the one that the client has sent."""


def completion_request(fields: Fields) -> Fields:
    """Return a completion as a request to the engine."""
    prompt = fields["prompt"]
    texts = prompt if isinstance(prompt, list) else [prompt]
    request: Fields = {"text" if isinstance(texts[0], str) else "input_ids": prompt}
    request |= _common(fields)
    request["sampling_params"]["max_new_tokens"] = fields.get("max_tokens", COMPLETION_TOKENS)
    if "logprobs" in fields:
        request |= _logprobs(fields["logprobs"])
        if fields.get("echo"):
            request["logprob_start_len"] = 0
    return request


def chat_request(fields: Fields) -> Fields:
    """Return a chat as a request to the engine for the next message."""
    given = enumerate(fields["messages"])
    return make_chat_request([plain_message(each, f"messages[{at}]") for at, each in given], fields)


def make_chat_request(messages: list[Fields], fields: Fields) -> Fields:
    """Return a request for the message after these; `fields` are the request's other fields."""
    request: Fields = {"messages": messages}
    effort = {name: fields[name] for name in ("reasoning_effort",) if name in fields}
    if template_args := effort | fields.get("chat_template_kwargs", {}):
        request["template_args"] = template_args
    request |= read_tools(fields) | _common(fields)
    sampling = request["sampling_params"]
    limits = {fields[name] for name in ("max_completion_tokens", "max_tokens") if name in fields}
    if len(limits) > 1:
        words = "max_tokens: is the old name of max_completion_tokens; give one of them"
        raise BadRequest(words, param="max_tokens")
    if limits:
        sampling["max_new_tokens"] = limits.pop()
    sampling |= _format(fields.get("response_format", {"type": "text"}))
    if fields.get("logprobs"):
        request |= _logprobs(fields.get("top_logprobs", 0))
    elif "top_logprobs" in fields:
        raise BadRequest("top_logprobs: needs logprobs = true", param="top_logprobs")
    return request


def openai_name(theirs: str, given: Collection[str]) -> str | None:
    """Return the name of the engine's field here, as the client has sent it; None for the same.

    `given` are the client's field names, and none while they are being read.
    """
    name = _ENGINE_NAMES.get(theirs) if given else None
    others = _OTHER_NAMES.get(name or "", ()) if name not in given else ()
    return next((other for other in others if other in given), name)


def _common(fields: Fields) -> Fields:
    if fields.get("stream_options") and not fields.get("stream"):
        raise BadRequest("stream_options: needs stream = true", param="stream_options")
    sampling = {theirs: fields[ours] for ours, (theirs, _) in SAMPLING.items() if ours in fields}
    if "sampling_seed" in sampling:
        sampling["sampling_seed"] %= 2**31  # OpenAI's seeds have 64 bits, the engine's 31
    request: Fields = {"sampling_params": sampling, "stream": fields.get("stream", False)}
    if "sampling_seed" in sampling:
        request["seed_is_a_wish"] = True  # OpenAI's API promises its best effort, and no more
    if fields.get("n", 1) > 1:
        request["copies"] = fields["n"]
    return request


def _logprobs(top: int) -> Fields:
    return {"return_logprob": True, "top_logprobs_num": top, "return_text_in_logprobs": True}


def _format(wanted: Fields) -> Fields:
    match wanted:
        case {"type": "text", **more} if not more:
            return {}
        case {"type": "json_object", **more} if not more:
            return {"json_schema": ANY_OBJECT_SCHEMA}
        case {"type": "json_object", "value": dict(schema), **more} if not more:
            return {"json_schema": json.dumps(schema)}  # the form of huggingface_hub's client
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}, **more} if not more:
            return {"json_schema": json.dumps(schema)}
    raise BadRequest(
        'response_format: must be {"type": "text"}, {"type": "json_object"} or '
        '{"type": "json_schema", "json_schema": {"schema": {…}}}',
        code="bad_field",
        param="response_format",
    )


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt that is sent before an answer."""

    prompt: str | None
    """None for a prompt of token ids: its text comes from the tokens."""

    def text(self, answer: Fields, text: str) -> str:
        """Return the prompt followed by this text of the answer."""
        prompt = self.prompt
        if prompt is None:
            tokens = answer["meta_info"].get("input_token_logprobs") or []
            prompt = "".join(each for _, _, each in tokens)
        return prompt + text

    def tokens(self, meta: Fields, name: str) -> list[Any]:
        """Return the tokens, or the values beside each, of the prompt and then of the answer."""
        return [*(meta.get(f"input_{name}") or []), *(meta.get(f"output_{name}") or [])]


def read_echoes(fields: Fields) -> list[Echo]:
    """Return the echo of each prompt, none if the client wants none; BadRequest if impossible."""
    if not fields.get("echo"):
        return []
    prompt = fields["prompt"]
    several = prompt if isinstance(prompt, list) and not is_integer(prompt[0]) else [prompt]
    texts = [each if isinstance(each, str) else None for each in several]
    if None in texts and "logprobs" not in fields:
        raise bad_value("echo", "needs logprobs for a prompt of token ids: they bring its text")
    return [Echo(text) for text in texts]


# --- messages -------------------------------------------------------------------------------------

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
"""The template's role for each of OpenAI's roles.

Templates know no `developer`, OpenAI's later word for `system`, and would leave the message out.
"""
OF_ROLE = {"assistant": {"tool_calls"}, "tool": {"tool_call_id"}}
"""Fields of a role's messages beside those of all messages."""


def bad_value(path: str, words: str) -> BadRequest:
    """Return the error for a wrong value at this path."""
    return BadRequest(f"{path}: {words}", code="bad_field", param=path)


def check_no_more(given: dict[Any, Any], known: set[str], path: str, words: str) -> None:
    """Raise BadRequest for further fields, unless their values are idle."""
    for name in sorted(given.keys() - known):
        if not is_idle(given[name], (*EMPTY_VALUES, "text")):  # one client sends `type`: "text"
            raise bad_value(f"{path}.{shorten(name)}", words)


def plain_message(message: Any, path: str) -> Fields:
    """Return one message; `path` is its place in the request."""
    if not isinstance(message, dict):
        raise bad_value(path, "must be an object with a role and a content")
    given = {name: value for name, value in message.items() if value is not None}
    role = given.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise bad_value(f"{path}.role", f"must be one of {', '.join(ROLES)}")
    more = OF_ROLE.get(role, set())
    words = "this server has only text and tools in messages; leave it out"
    check_no_more(given, {"role", "content", "name"} | more, path, words)
    calls = given.get("tool_calls") or []
    content = given.get("content", "" if calls and role == "assistant" else None)
    plain: Fields = {"role": ROLES[role], "content": _text(content, f"{path}.content")}
    for name in sorted(given.keys() & {"name", "tool_call_id"}):
        if not isinstance(given[name], str):
            raise bad_value(f"{path}.{name}", "must be a string")
        plain[name] = given[name]
    if calls and role == "assistant":
        path = f"{path}.tool_calls"
        if not isinstance(calls, list):
            raise bad_value(path, "must be a list of calls")
        plain["tool_calls"] = [_call(call, f"{path}[{at}]") for at, call in enumerate(calls)]
    return plain


def _text(content: Any, path: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_value(path, "must be a string or a list of text parts")
    return "".join(_part(part, f"{path}[{at}]") for at, part in enumerate(content))


def _part(part: Any, path: str) -> str:
    is_text = isinstance(part, dict) and part.keys() == {"type", "text"} and part["type"] == "text"
    if not is_text or not isinstance(part["text"], str):
        words = 'must be {"type": "text", "text": "…"}: the model reads nothing but text'
        raise bad_value(path, words)
    text: str = part["text"]
    return text


def _call(call: Any, path: str) -> Fields:
    """Return a tool call with its arguments as an object: templates format them themselves."""
    match call:
        case {"function": {"name": str(name), **function}, **more}:
            pass
        case _:
            raise bad_value(path, 'must be {"id", "type": "function", "function": {"name", …}}')
    if more.get("type", "function") != "function" or not isinstance(more.get("id", ""), str):
        raise bad_value(path, 'must have the type "function" and an id that is a string')
    check_no_more(more, {"id", "type", "index"}, path, "leave it out")
    check_no_more(function, {"arguments"}, f"{path}.function", "leave it out")
    arguments = _arguments(function.get("arguments"), f"{path}.function.arguments")
    named = {"id": more["id"]} if "id" in more else {}
    return {**named, "type": "function", "function": {"name": name, "arguments": arguments}}


def _arguments(given: Any, path: str) -> Fields:
    try:
        arguments = json.loads(given) if isinstance(given, str) and given.strip() else given or {}
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise bad_value(path, "must be a JSON object, or one in a string")
    return arguments


# --- tools ----------------------------------------------------------------------------------------

MOST_TOOLS = 128
NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
NO_PARAMETERS: Fields = {"type": "object", "properties": {}}


def read_tools(fields: Fields) -> Fields:
    """Return the fields for the engine; none if no tool may be called."""
    tools = [_tool(each, f"tools[{at}]") for at, each in enumerate(fields.get("tools", []))]
    if len(tools) > MOST_TOOLS:
        raise bad_value("tools", f"{len(tools)} are too many, there may be {MOST_TOOLS}")
    names = [tool["function"]["name"] for tool in tools]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise bad_value(f"tools[{at}].function.name", "two tools have this name")
    choice = fields.get("tool_choice", "auto")
    if choice == "none" or (choice == "auto" and not tools):
        return {}
    if not tools:
        raise bad_value("tool_choice", "needs tools")
    if choice == "auto":
        return {"tools": tools}
    if choice == "required":
        one = fields.get("parallel_tool_calls") is False
        return {"tools": tools, "tool_choice": "one" if one else "required"}
    named = _named_tool(choice)
    if named not in names:
        raise bad_value("tool_choice", "names none of the tools")
    return {"tools": [tools[names.index(named)]], "tool_choice": "one"}


def _named_tool(choice: Any) -> str:
    match choice:
        case {"type": "function", "function": {"name": str(name), **rest}, **more}:
            if not rest and not more:
                return name
    raise bad_value(
        "tool_choice",
        'must be "auto", "none", "required" or {"type": "function", "function": {"name": "…"}}',
    )


def _tool(tool: Any, path: str) -> Fields:
    match tool:
        case {"type": "function", "function": {"name": str(name), **function}, **more}:
            pass
        case _:
            words = 'must be {"type": "function", "function": {"name": "…", "parameters": {…}}}'
            raise bad_value(path, words)
    check_no_more(more, set(), path, "leave it out")
    path = f"{path}.function"
    check_no_more(function, {"description", "parameters", "strict"}, path, "leave it out")
    if not NAME.fullmatch(name):
        raise bad_value(f"{path}.name", "must be 1 to 128 letters, digits and any of _ . : / -")
    fields: Fields = {"name": name}
    description = function.get("description")
    if description is not None:
        if not isinstance(description, str):
            raise bad_value(f"{path}.description", "must be a string")
        fields["description"] = description
    if not isinstance(function.get("strict") or False, bool):
        raise bad_value(f"{path}.strict", "must be true or false")
    if function.get("strict"):
        fields["strict"] = True
    parameters = function.get("parameters") or NO_PARAMETERS
    if not isinstance(parameters, dict):
        raise bad_value(f"{path}.parameters", "must be a JSON schema, an object")
    return {"type": "function", "function": {**fields, "parameters": parameters}}
