"""The fields that bodies of SGLang's routes may have, and the kind of each.

What asks for something that hotreload has not is refused by its name; at the value at which it asks
for nothing it is taken. See SGLang's `srt/managers/io_struct.py` and `srt/entrypoints/openai`.
"""

from collections.abc import Mapping
from typing import Any

from hotreload.server.admin import RELOAD_FIELDS, WEIGHT_VERSION
from hotreload.server.http.request_body import (
    BOOLEAN,
    INTEGER,
    NAME_OF_WEIGHTS,
    OBJECT,
    STRING,
    Kind,
    text,
    whole_number,
)

MOST_ROWS = 2**20


def _off(value: Any) -> Kind:
    """A field that may be left out, null, or this."""
    words = f"{str(value).lower()} here: this server has not what else it asks for"
    return Kind(words, lambda given: given is value, {"const": value})


def _are(kind: type, value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is kind for each in value)


def _one_or_list_of_ids(value: Any) -> bool:
    is_batch = isinstance(value, list) and bool(value) and isinstance(value[0], list)
    return all(_are(int, each) for each in value) if is_batch else _are(int, value)


_NOT_HERE = Kind("null: this server has not what it asks for", lambda value: False)
_NAMES = Kind(
    "a list of strings",
    lambda value: _are(str, value),
    {"type": "array", "items": {"type": "string"}},
)
_INTEGERS = {"type": "array", "items": {"type": "integer"}}
EVERY_CONTROL = {"rid": STRING, "http_worker_ipc": _NOT_HERE}

ABORT: Mapping[str, Kind] = {
    **EVERY_CONTROL,
    "abort_all": BOOLEAN,
    "finished_reason": _NOT_HERE,
    "abort_message": _NOT_HERE,
    "weight_versions": _NOT_HERE,
}
BY_NAME: Mapping[str, Kind] = {
    **EVERY_CONTROL,
    "name": NAME_OF_WEIGHTS,
    "truncate_size": whole_number(1, MOST_ROWS),
}
CHECK: Mapping[str, Kind] = {
    **EVERY_CONTROL,
    "action": STRING,
    "allow_quant_error": _off(False),
    "skip_tensor_list": _NAMES,
    "selector": Kind(
        "all or target: this server has no draft model",
        lambda value: value in ("all", "target"),
        {"enum": ["all", "target"]},
    ),
}
UPDATE: Mapping[str, Kind] = {
    **EVERY_CONTROL,
    "model_path": NAME_OF_WEIGHTS,
    "load_format": RELOAD_FIELDS["load_format"],
    "abort_all_requests": BOOLEAN,
    "weight_version": WEIGHT_VERSION,
    "is_async": BOOLEAN,
    "torch_empty_cache": BOOLEAN,
    "keep_pause": BOOLEAN,
    "recapture_cuda_graph": BOOLEAN,
    "token_step": INTEGER,
    "flush_cache": BOOLEAN,
    "manifest": _NOT_HERE,
}
"""Ways of going about it ask for nothing here: a load disturbs nobody, and ends no pause; programs
take weights as arguments; no weights read what others cached."""
UPDATE_BY_NAME: Mapping[str, Kind] = {"weight_dir": NAME_OF_WEIGHTS, "update_info": _NOT_HERE}
NAME_FIELDS: Mapping[str, Kind] = {
    **EVERY_CONTROL,
    "new_version": WEIGHT_VERSION,
    "abort_all_requests": BOOLEAN,
}
CHECK_BY_NAME: Mapping[str, Kind] = {
    "action": STRING,
    "baseline": OBJECT,
}
TOKENIZE: Mapping[str, Kind] = {
    "model": text(4096),
    "prompt": Kind(
        "a string or a list of strings",
        lambda value: isinstance(value, str) or _are(str, value),
        {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    ),
    "messages": Kind(
        "a list of messages, at least one",
        lambda value: isinstance(value, list) and bool(value),
        {"type": "array", "items": {"type": "object"}, "minItems": 1},
    ),
    "add_special_tokens": BOOLEAN,
    "chat_template_kwargs": OBJECT,
    "add_generation_prompt": _off(True),
    "continue_final_message": _off(False),
    "return_token_strs": _off(False),
    "tools": _NOT_HERE,
    "tool_choice": _NOT_HERE,
    "reasoning_effort": _NOT_HERE,
}
DETOKENIZE: Mapping[str, Kind] = {
    "model": text(4096),
    "tokens": Kind(
        "a list of integers, or a list of such lists",
        _one_or_list_of_ids,
        {"anyOf": [_INTEGERS, {"type": "array", "items": _INTEGERS}]},
    ),
    "skip_special_tokens": BOOLEAN,
}
