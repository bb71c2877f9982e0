"""The messages and tools of a chat, in the form that a chat template takes."""

import json
import re
from typing import Any

from hotreload.errors import BadRequest
from hotreload.json_fields import Fields
from hotreload.server.api_schema.known_fields import EMPTY_VALUES, is_idle
from hotreload.server.http.request_body import shorten

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


def plain_messages(messages: list[Any]) -> list[Fields]:
    """Return the messages; BadRequest for content that is neither text nor tools."""
    return [plain_message(message, f"messages[{at}]") for at, message in enumerate(messages)]


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
        plain["tool_calls"] = _calls(calls, f"{path}.tool_calls")
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


def _calls(calls: Any, path: str) -> list[Fields]:
    if not isinstance(calls, list):
        raise bad_value(path, "must be a list of calls")
    return [_call(call, f"{path}[{at}]") for at, call in enumerate(calls)]


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
