"""The kinds of values in the fields of a request to the model."""

from typing import Any

from hotreload.server.http.request_body import Kind, is_integer, is_number, whole_number

MOST_CHOICES = 128
MOST_STOPS = 16
_TYPES = {str: "string", bool: "boolean", dict: "object", int: "integer"}


def number(least: float, most: float) -> Kind:
    """Return the kind of a number within bounds."""
    return Kind(
        f"a number from {least:g} to {most:g}",
        lambda value: is_number(value) and least <= value <= most,
        {"type": "number", "minimum": least, "maximum": most},
    )


def _are_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(is_integer(each) for each in value)


def _is_prompt(value: Any) -> bool:
    if isinstance(value, list) and value and isinstance(value[0], list):
        return all(each and _are_ids(each) for each in value)
    return isinstance(value, str) or (bool(value) and (_are_strings(value) or _are_ids(value)))


def _are_stops(value: Any) -> bool:
    stops = [value] if isinstance(value, str) else value
    return _are_strings(stops) and 0 < len(stops) <= MOST_STOPS and all(stops)


_STRINGS = {"type": "array", "items": {"type": "string", "minLength": 1}}
_IDS = {"type": "array", "items": {"type": "integer"}}
PROMPT = Kind(
    "a string, a list of strings, a list of token ids or a list of such lists",
    _is_prompt,
    {
        "anyOf": [
            {"type": "string"},
            {"type": "array", "items": {"type": "string"}, "minItems": 1},
            {**_IDS, "minItems": 1},
            {"type": "array", "items": {**_IDS, "minItems": 1}, "minItems": 1},
        ]
    },
)
STOP = Kind(
    f"a string or a list of up to {MOST_STOPS} strings, none of them empty",
    _are_stops,
    {
        "anyOf": [
            {"type": "string", "minLength": 1},
            {**_STRINGS, "minItems": 1, "maxItems": MOST_STOPS},
        ]
    },
)
MESSAGES = Kind(
    "a list of messages, at least one",
    lambda value: isinstance(value, list) and bool(value),
    {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "required": ["role", "content"],
            "properties": {
                "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
                "content": {"type": "string"},
                "name": {"type": "string"},
            },
        },
    },
)
TOOLS = Kind(
    "a list of tools",
    lambda value: isinstance(value, list) and all(isinstance(each, dict) for each in value),
    {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["type", "function"],
            "properties": {
                "type": {"const": "function"},
                "function": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {
                        "name": {"type": "string", "pattern": "^[A-Za-z0-9_-]{1,64}$"},
                        "description": {"type": "string"},
                        "parameters": {"type": "object"},
                    },
                },
            },
        },
    },
)
TOOL_CHOICE = Kind(
    "a string or an object",
    lambda value: isinstance(value, str | dict),
    {"anyOf": [{"enum": ["auto", "none", "required"]}, {"type": "object"}]},
)
CHOICES = whole_number(1, MOST_CHOICES)
TOKENS = whole_number(0, 2**31 - 1)
TOP_P = Kind(
    "a number above 0 and at most 1",
    lambda value: is_number(value) and 0 < value <= 1,
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
)
TOP_K = Kind(
    "a positive whole number, or -1 for the whole vocabulary",
    lambda value: is_integer(value) and (value == -1 or 0 < value <= 2**30),
    {"anyOf": [{"const": -1}, {"type": "integer", "minimum": 1, "maximum": 2**30}]},
)
IDS = Kind("a list of token ids", _are_ids, _IDS)


def one_or_list(*kinds: type) -> Kind:
    """Return the kind of a value of these types, or a list with one for each prompt."""
    named = _TYPES[kinds[0]]
    one = {"type": named}

    def fits(value: Any) -> bool:
        items = value if isinstance(value, list) else [value]
        return all(isinstance(item, kinds) for item in items)

    words = f"{'an' if named[0] in 'aeiou' else 'a'} {named} or a list of them"
    return Kind(words, fits, {"anyOf": [one, {"type": "array", "items": one}]})


def _are_ids_or_batch(value: Any) -> bool:
    return _are_ids(value) or (isinstance(value, list) and all(_are_ids(item) for item in value))


IDS_OR_BATCH = Kind(
    "a list of token ids or a list of such lists",
    _are_ids_or_batch,
    {"anyOf": [_IDS, {"type": "array", "items": _IDS}]},
)
