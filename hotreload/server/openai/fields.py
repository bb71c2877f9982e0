"""The fields that OpenAI's requests may have, and the kind of each; the rest is refused by name."""

from collections.abc import Mapping
from typing import Any

from hotreload.errors import BadRequest
from hotreload.json_fields import Fields
from hotreload.server.answerer import MIN_GENERATION
from hotreload.server.request_body import (
    BOOLEAN,
    OBJECT,
    STRING,
    Kind,
    is_integer,
    is_number,
    whole_number,
)

MOST_CHOICES = 128
MOST_STOPS = 16


def number(least: float, most: float) -> Kind:
    """A number within bounds."""
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
                "role": {"enum": ["system", "developer", "user", "assistant"]},
                "content": {"type": "string"},
                "name": {"type": "string"},
            },
        },
    },
)
STREAM_OPTIONS = Kind(
    "an object",
    lambda value: isinstance(value, dict),
    {"type": "object", "properties": {"include_usage": {"type": "boolean"}}},
)
TOKENS = whole_number(1, 2**31 - 1)
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

SAMPLING: Mapping[str, tuple[str, Kind]] = {
    "temperature": ("temperature", number(0, 100)),
    "top_p": ("top_p", TOP_P),
    "frequency_penalty": ("frequency_penalty", number(-2, 2)),
    "presence_penalty": ("presence_penalty", number(-2, 2)),
    "seed": ("sampling_seed", whole_number(-(2**63), 2**63 - 1)),
    "stop": ("stop", STOP),
    # Not OpenAI's, and the engine has them: `extra_body` of its client.
    "top_k": ("top_k", TOP_K),
    "min_p": ("min_p", number(0, 1)),
    "repetition_penalty": ("repetition_penalty", number(0, 2)),
    "min_tokens": ("min_new_tokens", whole_number(0, 2**31 - 1)),
    "stop_token_ids": ("stop_token_ids", IDS),
    "ignore_eos": ("ignore_eos", BOOLEAN),
    "skip_special_tokens": ("skip_special_tokens", BOOLEAN),
    "regex": ("regex", STRING),
    "ebnf": ("ebnf", STRING),
}
"""Each field that goes to the engine as it is: what the engine calls it, and what it must be."""

WITHOUT_EFFECT: Mapping[str, Kind] = {
    "metadata": OBJECT,
    "parallel_tool_calls": BOOLEAN,
    "prediction": OBJECT,
    "prompt_cache_key": STRING,
    "prompt_cache_retention": STRING,
    "safety_identifier": STRING,
    "user": STRING,
}
"""Fields that say who asks, or how to be quick: by their meaning they change no answer."""

COMMON: Mapping[str, Kind] = {
    "model": STRING,
    "n": whole_number(1, MOST_CHOICES),
    "max_tokens": TOKENS,
    "stream": BOOLEAN,
    "stream_options": STREAM_OPTIONS,
    **WITHOUT_EFFECT,
    **{name: kind for name, (_, kind) in SAMPLING.items()},
    **MIN_GENERATION,
}
COMPLETION: Mapping[str, Kind] = {**COMMON, "prompt": PROMPT, "logprobs": whole_number(0, 20)}
CHAT: Mapping[str, Kind] = {
    **COMMON,
    "messages": MESSAGES,
    "max_completion_tokens": TOKENS,
    "logprobs": BOOLEAN,
    "top_logprobs": whole_number(0, 20),
    "response_format": OBJECT,
    "chat_template_kwargs": OBJECT,
}

ASKS_FOR_NOTHING: Mapping[str, tuple[Any, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "reasoning_effort": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),  # of no tools
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields of OpenAI's that this server does not support, with the values that some clients send and
that ask for nothing."""


def drop_unsupported(
    fields: Fields, idle: Mapping[str, tuple[Any, ...]] = ASKS_FOR_NOTHING, within: str = ""
) -> None:
    """Take out what asks for nothing; what asks for something is refused by its name."""
    for name in sorted(idle.keys() & fields.keys()):
        value = fields.pop(name)
        if not any(_is_same(value, each) for each in idle[name]):
            raise BadRequest(
                f"{within}{name}: this server does not have it; leave it out",
                code="unsupported_parameter",
                param=within + name,
            )


def _is_same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and bool(value == other)
