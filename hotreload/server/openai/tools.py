"""The tools of a request, and the choice among them."""

import re
from typing import Any

from hotreload.json_fields import Fields
from hotreload.server.openai.messages import bad_value, check_no_more

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
