"""The messages of a chat, as a template of text and tools takes them."""

import json
from typing import Any

from hotreload.errors import BadRequest
from hotreload.json_fields import Fields
from hotreload.server.api_schema.known_fields import EMPTY, asks_for_nothing
from hotreload.server.http.request_body import shorten

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
"""Templates know no `developer`, OpenAI's later word for `system`, and would leave it out."""
OF_ROLE = {"assistant": {"tool_calls"}, "tool": {"tool_call_id"}}
"""Fields that messages of one role may have beside those of all."""


def plain_messages(messages: list[Any]) -> list[Fields]:
    """The messages; BadRequest names what in them no template of text and tools can show."""
    return [plain_message(message, f"messages[{at}]") for at, message in enumerate(messages)]


def bad_value(path: str, words: str) -> BadRequest:
    """The error that says what is wrong with the value at this path."""
    return BadRequest(f"{path}: {words}", code="bad_field", param=path)


def check_no_more(given: dict[Any, Any], known: set[str], path: str, words: str) -> None:
    """Refuse what asks for something beside these fields."""
    for name in sorted(given.keys() - known):
        if not asks_for_nothing(given[name], (*EMPTY, "text")):  # `type`: "text" is one client's
            raise bad_value(f"{path}.{shorten(name)}", words)


def plain_message(message: Any, path: str) -> Fields:
    """One of them, which stands at this path of the request."""
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
    """A call with its arguments as an object: templates write them out in their own way."""
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
    told = {"id": more["id"]} if "id" in more else {}
    return {**told, "type": "function", "function": {"name": name, "arguments": arguments}}


def _arguments(given: Any, path: str) -> Fields:
    try:
        arguments = json.loads(given) if isinstance(given, str) and given.strip() else given or {}
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise bad_value(path, "must be a JSON object, or one in a string")
    return arguments
