"""The fields in the bodies of SGLang's routes, and the kind of each.

A field that asks for something unsupported is accepted only with the value that asks for nothing.
See SGLang's `srt/managers/io_struct.py` and `srt/entrypoints/openai`.
"""

from collections.abc import Mapping
from typing import Any, Literal

from hotreload.server.admin import RELOAD_FIELDS, WEIGHT_VERSION
from hotreload.server.api_schema.field_kinds import MESSAGES, are_ids_or_batch, are_strings
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


def _only(value: Any) -> Kind:
    """Return the kind of a field that may be left out, null, or this value."""
    words = f"{str(value).lower()} here: this server supports no other value"
    return Kind(words, lambda given: given is value, Literal[value])


_NULL_ONLY = Kind("null: this server does not support it", lambda value: False)
_NAMES = Kind("a list of strings", are_strings, list[str])
SGLANG_FIELDS = {"rid": STRING, "http_worker_ipc": _NULL_ONLY}

ABORT_FIELDS: Mapping[str, Kind] = {
    **SGLANG_FIELDS,
    "abort_all": BOOLEAN,
    "finished_reason": _NULL_ONLY,
    "abort_message": _NULL_ONLY,
    "weight_versions": _NULL_ONLY,
}
WEIGHTS_BY_NAME_FIELDS: Mapping[str, Kind] = {
    **SGLANG_FIELDS,
    "name": NAME_OF_WEIGHTS,
    "truncate_size": whole_number(1, MOST_ROWS),
}
CHECK_FIELDS: Mapping[str, Kind] = {
    **SGLANG_FIELDS,
    "action": STRING,
    "allow_quant_error": _only(False),
    "skip_tensor_list": _NAMES,
    "selector": Kind(
        "all or target: this server has no draft model",
        lambda value: value in ("all", "target"),
        Literal["all", "target"],
    ),
}
UPDATE_FIELDS: Mapping[str, Kind] = {
    **SGLANG_FIELDS,
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
    "manifest": _NULL_ONLY,
}
"""The fields of an update; most of its options ask for nothing here.

Loading disturbs no request and ends no pause; programs take weights as arguments; no weights read a
prefix that others have cached.
"""
VLLM_UPDATE_FIELDS: Mapping[str, Kind] = {"weight_dir": NAME_OF_WEIGHTS, "update_info": _NULL_ONLY}
NAME_FIELDS: Mapping[str, Kind] = {
    **SGLANG_FIELDS,
    "new_version": WEIGHT_VERSION,
    "abort_all_requests": BOOLEAN,
}
VLLM_CHECK_FIELDS: Mapping[str, Kind] = {
    "action": STRING,
    "baseline": OBJECT,
}
TOKENIZE_FIELDS: Mapping[str, Kind] = {
    "model": text(4096),
    "prompt": Kind(
        "a string or a list of strings",
        lambda value: isinstance(value, str) or are_strings(value),
        str | list[str],
    ),
    "messages": MESSAGES,
    "add_special_tokens": BOOLEAN,
    "chat_template_kwargs": OBJECT,
    "add_generation_prompt": _only(True),
    "continue_final_message": _only(False),
    "return_token_strs": _only(False),
    "tools": _NULL_ONLY,
    "tool_choice": _NULL_ONLY,
    "reasoning_effort": _NULL_ONLY,
}
DETOKENIZE_FIELDS: Mapping[str, Kind] = {
    "model": text(4096),
    "tokens": Kind(
        "a list of integers, or a list of such lists",
        are_ids_or_batch,
        list[int] | list[list[int]],
    ),
    "skip_special_tokens": BOOLEAN,
}
