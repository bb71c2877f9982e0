"""POST /generate: the engine's own schema, in and out, each answer naming its generation."""

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from hotreload.errors import BadRequest, HotReloadError
from hotreload.json_fields import Fields
from hotreload.server.answerer import (
    MIN_GENERATION,
    EngineAnswer,
    ModelRequest,
    check_batch,
    oldest_wanted,
)
from hotreload.server.bounds import Limits
from hotreload.server.problems import problem_fields
from hotreload.server.request_body import BOOLEAN, Kind, is_integer, read_fields
from hotreload.types import Generation

_TYPES = {str: "string", bool: "boolean", dict: "object", int: "integer"}


def _is_list_of(value: Any, *kinds: type) -> bool:
    return isinstance(value, list) and all(isinstance(item, kinds) for item in value)


def _are_ids(value: Any) -> bool:
    return isinstance(value, list) and all(is_integer(item) for item in value)


def _are_ids_or_batch(value: Any) -> bool:
    return _are_ids(value) or (isinstance(value, list) and all(_are_ids(item) for item in value))


def _is_one_or_list(*kinds: type) -> Kind:
    named = _TYPES[kinds[0]]
    one = {"type": named}

    def fits(value: Any) -> bool:
        return isinstance(value, kinds) or _is_list_of(value, *kinds)

    words = f"{'an' if named[0] in 'aeiou' else 'a'} {named} or a list of them"
    return Kind(words, fits, {"anyOf": [one, {"type": "array", "items": one}]})


_IDS = {"type": "array", "items": {"type": "integer"}}
IDS = Kind(
    "a list of token ids or a list of such lists",
    _are_ids_or_batch,
    {"anyOf": [_IDS, {"type": "array", "items": _IDS}]},
)
PROMPTS = ("text", "input_ids")
FIELDS: Mapping[str, Kind] = {
    "rid": _is_one_or_list(str),
    "text": _is_one_or_list(str),
    "input_ids": IDS,
    "sampling_params": _is_one_or_list(dict),
    "stream": BOOLEAN,
    "return_logprob": _is_one_or_list(bool),
    "logprob_start_len": _is_one_or_list(int),
    "top_logprobs_num": _is_one_or_list(int),
    "token_ids_logprob": IDS,
    "return_text_in_logprobs": BOOLEAN,
    **MIN_GENERATION,
}


async def read_generate(request: Request, limits: Limits) -> ModelRequest:
    """The request as it was sent: the engine speaks the same schema."""
    wish = await read_fields(request, FIELDS, nesting=limits.nesting)
    given = [name for name in PROMPTS if name in wish]
    if len(given) != 1:
        raise BadRequest("give text or input_ids, one of them", code="bad_field")
    check_batch(_batch_size(wish[given[0]]), limits, given[0])
    at_least = oldest_wanted(request, wish)
    return ModelRequest(wish, AsTheEngine(), at_least)


class AsTheEngine:
    """Tells answers as the engine gives them, with their generation in `meta_info`."""

    def whole(self, item: EngineAnswer, generation: Generation) -> Any:
        """The answer, or the list of them."""
        for answer in item if isinstance(item, list) else [item]:
            _stamp(answer, generation)
        return item

    def piece(self, answer: Fields, generation: Generation) -> list[Any]:
        """The piece itself."""
        _stamp(answer, generation)
        return [answer]

    def end(self, generation: Generation) -> list[Any]:
        """Nothing."""
        return []

    def failed(self, error: HotReloadError) -> Any:
        """The problem in place of a piece."""
        return {"error": problem_fields(error)}


def _batch_size(prompts: Any) -> int:
    if isinstance(prompts, list) and not (prompts and is_integer(prompts[0])):
        return len(prompts)
    return 1


def _stamp(answer: Fields, generation: Generation) -> None:
    answer["meta_info"] = {**answer.get("meta_info", {}), **generation.stamp}
