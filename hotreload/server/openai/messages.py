"""The messages of a chat, as a chat template reads them: a role and a text each."""

from typing import Any

from hotreload.errors import BadRequest
from hotreload.server.ports import Fields
from hotreload.server.requests import short

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
"""Templates know no `developer`, OpenAI's later word for `system`, and would leave it out."""


def plain_messages(messages: list[Any]) -> list[Fields]:
    """The messages; BadRequest names what in them no template of text can show."""
    return [_plain(message, f"messages[{at}]") for at, message in enumerate(messages)]


def _plain(message: Any, path: str) -> Fields:
    if not isinstance(message, dict):
        raise _bad(path, "must be an object with a role and a content")
    given = {name: value for name, value in message.items() if value not in (None, [])}
    for name in given.keys() - {"role", "content", "name"}:
        raise _bad(f"{path}.{short(name)}", "this server has only text in messages; leave it out")
    role = given.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise _bad(f"{path}.role", f"must be one of {', '.join(ROLES)}")
    plain: Fields = {"role": ROLES[role], "content": _text(given.get("content"), f"{path}.content")}
    if "name" in given:
        if not isinstance(given["name"], str):
            raise _bad(f"{path}.name", "must be a string")
        plain["name"] = given["name"]
    return plain


def _text(content: Any, path: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _bad(path, "must be a string or a list of text parts")
    return "".join(_part(part, f"{path}[{at}]") for at, part in enumerate(content))


def _part(part: Any, path: str) -> str:
    is_text = isinstance(part, dict) and part.keys() == {"type", "text"} and part["type"] == "text"
    if not is_text or not isinstance(part["text"], str):
        raise _bad(path, 'must be {"type": "text", "text": "…"}: the model reads nothing but text')
    text: str = part["text"]
    return text


def _bad(path: str, words: str) -> BadRequest:
    return BadRequest(f"{path}: {words}", code="bad_field", param=path)
