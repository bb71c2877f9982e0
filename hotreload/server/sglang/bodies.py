"""The fields in the bodies of SGLang's routes, and the kind of each.

A field that asks for something unsupported is accepted only with the value that asks for nothing.
See SGLang's `srt/managers/io_struct.py` and `srt/entrypoints/openai`.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from hotreload.server.admin import LOAD_FORMAT, WEIGHT_VERSION
from hotreload.server.api_schema import kinds
from hotreload.server.api_schema.kinds import NULL_ONLY, Kind, list_of, text, whole_number

MOST_ROWS = 2**20


def _only(value: bool) -> Kind:
    """Return the kind of a field that may be left out, null, or this value."""
    words = f"{str(value).lower()} here: this server supports no other value"
    return Kind(words, Literal[value], Annotated[bool, Field(ge=value, le=value)])


SGLANG_FIELDS = {"rid": kinds.STRING, "http_worker_ipc": NULL_ONLY}

ABORT_FIELDS: Mapping[str, Kind] = {
    **SGLANG_FIELDS,
    "abort_all": kinds.BOOLEAN,
    "finished_reason": NULL_ONLY,
    "abort_message": NULL_ONLY,
    "weight_versions": NULL_ONLY,
}
WEIGHTS_BY_NAME_FIELDS: Mapping[str, Kind] = {
    **SGLANG_FIELDS,
    "name": kinds.NAME_OF_WEIGHTS,
    "truncate_size": whole_number(1, MOST_ROWS),
}
CHECK_FIELDS: Mapping[str, Kind] = {
    **SGLANG_FIELDS,
    "action": kinds.STRING,
    "allow_quant_error": _only(False),
    "skip_tensor_list": kinds.STRINGS,
    "selector": Kind(
        "all or target: this server has no draft model",
        Literal["all", "target"],
    ),
}
UPDATE_FIELDS: Mapping[str, Kind] = {
    **SGLANG_FIELDS,
    "model_path": kinds.NAME_OF_WEIGHTS,
    "load_format": LOAD_FORMAT,
    "abort_all_requests": kinds.BOOLEAN,
    "weight_version": WEIGHT_VERSION,
    "is_async": kinds.BOOLEAN,
    "torch_empty_cache": kinds.BOOLEAN,
    "keep_pause": kinds.BOOLEAN,
    "recapture_cuda_graph": kinds.BOOLEAN,
    "token_step": kinds.INTEGER,
    "flush_cache": kinds.BOOLEAN,
    "manifest": NULL_ONLY,
}
"""The fields of an update; most of its options ask for nothing here.

Loading disturbs no request and ends no pause; programs take weights as arguments; no weights read a
prefix that others have cached.
"""
VLLM_UPDATE_FIELDS: Mapping[str, Kind] = {
    "weight_dir": kinds.NAME_OF_WEIGHTS,
    "update_info": NULL_ONLY,
}
NAME_FIELDS: Mapping[str, Kind] = {
    **SGLANG_FIELDS,
    "new_version": WEIGHT_VERSION,
    "abort_all_requests": kinds.BOOLEAN,
}
VLLM_CHECK_FIELDS: Mapping[str, Kind] = {
    "action": kinds.STRING,
    "baseline": kinds.OBJECT,
}
TOKENIZE_FIELDS: Mapping[str, Kind] = {
    "model": text(4096),
    "prompt": Kind("a string or a list of strings", str | list_of(str)),
    "messages": kinds.MESSAGES,
    "add_special_tokens": kinds.BOOLEAN,
    "chat_template_kwargs": kinds.OBJECT,
    "add_generation_prompt": _only(True),
    "continue_final_message": _only(False),
    "return_token_strs": _only(False),
    "tools": NULL_ONLY,
    "tool_choice": NULL_ONLY,
    "reasoning_effort": NULL_ONLY,
}
DETOKENIZE_FIELDS: Mapping[str, Kind] = {
    "model": text(4096),
    "tokens": Kind("a list of integers, or a list of such lists", kinds.ID_LISTS),
    "skip_special_tokens": kinds.BOOLEAN,
}
