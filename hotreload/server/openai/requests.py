"""Translates OpenAI's requests to the engine's schema, and field names in refusals back."""

import json
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager

from hotreload.errors import BadRequest
from hotreload.json_fields import Fields
from hotreload.server.api_schema.known_fields import SAMPLING, STREAM_OPTIONS
from hotreload.server.openai.messages import plain_messages, read_tools
from hotreload.server_limits import Limits

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
    prompt = fields.get("prompt")
    if prompt is None:
        raise BadRequest("prompt is missing", code="bad_field", param="prompt")
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
    if "messages" not in fields:
        raise BadRequest("messages is missing", code="bad_field", param="messages")
    return make_chat_request(plain_messages(fields["messages"]), fields)


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


def read_stream_options(fields: Fields, limits: Limits) -> Fields:
    """Return the checked options of a stream."""
    options = STREAM_OPTIONS.check(fields.get("stream_options", {}), limits)
    if options and not fields.get("stream"):
        raise BadRequest("stream_options: needs stream = true", param="stream_options")
    return options


def rename_to_openai(given: Callable[[], Collection[str]]) -> AbstractContextManager[None]:
    """Rename the field in a BadRequest of the block to the name that the client has sent.

    `given` returns the client's field names, and none while they are being read.
    """

    def name_of(theirs: str) -> str | None:
        name = _ENGINE_NAMES.get(theirs) if given() else None
        others = _OTHER_NAMES.get(name or "", ()) if name not in given() else ()
        return next((other for other in others if other in given()), name)

    return rename_field(name_of)


@contextmanager
def rename_field(name_of: Callable[[str], str | None]) -> Iterator[None]:
    """Rename the field in a BadRequest of the block by `name_of`."""
    try:
        yield
    except BadRequest as error:
        name = name_of(error.param or "")
        if name is None:
            raise
        words = str(error).removeprefix(f"{error.param}: ")
        raise BadRequest(f"{name}: {words}", code=error.code, param=name) from error


def _common(fields: Fields) -> Fields:
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
