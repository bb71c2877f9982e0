"""The fields of a request to /v1/responses, where they differ from those of a chat."""

from typing import Any

from hotreload.server.answerer import MIN_GENERATION
from hotreload.server.api_schema.field_kinds import TOKENS, TOOL_CHOICE, TOOLS
from hotreload.server.api_schema.known_fields import CHAT, IGNORED_FIELDS, SAMPLING, KnownFields
from hotreload.server.http.request_body import BOOLEAN, OBJECT, STRING, Kind

MOST_METADATA = 16
LONGEST_METADATA = 512


def _is_metadata(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and len(value) <= MOST_METADATA
        and all(isinstance(each, str) and len(each) <= LONGEST_METADATA for each in value.values())
        and all(len(name) <= LONGEST_METADATA for name in value)
    )


METADATA = Kind(
    f"an object of up to {MOST_METADATA} strings, none longer than {LONGEST_METADATA}",
    _is_metadata,
    {
        "type": "object",
        "maxProperties": MOST_METADATA,
        "propertyNames": {"maxLength": LONGEST_METADATA},
        "additionalProperties": {"type": "string", "maxLength": LONGEST_METADATA},
    },
)
INPUT = Kind(
    "a string or a list of items, at least one",
    lambda value: isinstance(value, str) or (isinstance(value, list) and bool(value)),
    {
        "anyOf": [
            {"type": "string"},
            {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "required": ["role", "content"],
                    "properties": {
                        "role": {"enum": ["system", "developer", "user", "assistant"]},
                        "content": {"type": "string"},
                    },
                },
            },
        ]
    },
)
FLAT_TOOLS = Kind(
    TOOLS.words,
    TOOLS.fits,
    {
        "type": "array",
        "items": {
            "type": "object",
            "required": ["type", "name"],
            "properties": {
                "type": {"const": "function"},
                **TOOLS.schema["items"]["properties"]["function"]["properties"],
            },
        },
    },
)
_SUPPORTED = {
    "model": STRING,
    "input": INPUT,
    "instructions": STRING,
    "max_output_tokens": TOKENS,
    "metadata": METADATA,
    "stream": BOOLEAN,
    "store": BOOLEAN,
    "text": OBJECT,
    "reasoning": OBJECT,
    "tools": FLAT_TOOLS,
    "tool_choice": TOOL_CHOICE,
    "parallel_tool_calls": BOOLEAN,
    "chat_template_kwargs": OBJECT,
    **{name: kind for name, (_, kind) in SAMPLING.items()},
    **MIN_GENERATION,
}
_ITS_OWN = """
    access_programs background background_options context_management conversation
    enable_response_messages image include max_tool_calls previous_input_messages
    previous_response_id prompt stream_options top_logprobs truncation
    """
RESPONSES = KnownFields(
    _SUPPORTED,
    (CHAT.unsupported | set(_ITS_OWN.split())) - _SUPPORTED.keys(),
    IGNORED_FIELDS,
    other_names={
        **dict.fromkeys(("messages", "prompts", "inputs"), "input"),
        **dict.fromkeys(("max_tokens", "max_completion_tokens"), "max_output_tokens"),
        "response_format": "text",
        "reasoning_effort": "reasoning",
    },
    own_idle={
        **CHAT.own_idle,
        "instructions": ("",),
        "reasoning": ({},),
        "text": ({},),
        "truncation": ("", "disabled"),
    },
)
