"""Requests in the engine's own schema, checked before they can reach the engine.

Many things a client may send end the process, poison the KV pool or are silently ignored.
Pure: knows limits and capabilities, no engine.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hotreload.errors import BadRequest

MOST = 1e9
"""No sampling parameter is sensibly larger."""
LONGEST_TOKEN = 32
"""Characters of one token, at most, as good tokenizers have it."""

Encode = Callable[[str], list[int]]

GRAMMARS = frozenset({"json_schema", "regex", "ebnf", "structural_tag"})
LOGPROBS = frozenset(
    {
        "return_logprob",
        "logprob_start_len",
        "top_logprobs_num",
        "token_ids_logprob",
        "return_text_in_logprobs",
    }
)
FIELDS = frozenset({"text", "input_ids", "sampling_params", "stream", "rid"}) | LOGPROBS
NUMBERS = frozenset(
    {
        "temperature",
        "top_p",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
    }
)
INTEGERS = frozenset({"max_new_tokens", "top_k", "min_new_tokens", "n", "sampling_seed"})
FLAGS = frozenset(
    {"ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim"}
)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this engine can do; what it cannot is refused with a reason."""

    logprobs: bool
    """0.0.2 has them and dies of every request that asks for any."""
    grammars: bool
    """0.0.2 takes the parameters and ignores them."""
    sampling: frozenset[str]
    """The names of the sampling parameters it knows."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How large things may be in this engine."""

    vocabulary: int
    input_tokens: int
    total_tokens: int


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt, fit for the engine."""

    input_ids: list[int] = field(repr=False)
    sampling_params: dict[str, Any]
    logprobs: dict[str, Any]
    rid: str | None


@dataclass(frozen=True, slots=True)
class Parsed:
    """A whole request: one prompt, or a batch of them."""

    items: tuple[Item, ...]
    is_batch: bool
    stream: bool


def parse(
    request: Mapping[str, Any], *, limits: Limits, can: Capabilities, encode: Encode
) -> Parsed:
    """The request as items; BadRequest names the parameter that cannot be served."""
    for name in request:
        if name not in FIELDS:
            raise BadRequest(f"{name}: this server has no such parameter")
    stream = request.get("stream") or False
    if not isinstance(stream, bool):
        raise BadRequest("stream: must be true or false")
    prompts, is_batch = _prompts(request, encode, limits)
    items = tuple(
        _item(one, ids, limits, can)
        for one, ids in zip(_one_by_one(request, len(prompts), is_batch), prompts, strict=True)
    )
    return Parsed(items, is_batch, stream)


def _one_by_one(
    request: Mapping[str, Any], count: int, is_batch: bool
) -> Iterator[Mapping[str, Any]]:
    """The parameters of each prompt: in a batch any of them may be a list of one each."""
    if not is_batch:
        yield request
        return
    for name, value in request.items():
        if isinstance(value, list) and len(value) != count:
            raise BadRequest(f"{name}: {len(value)} values for {count} prompts")
    for at in range(count):
        one = {k: v[at] if isinstance(v, list) else v for k, v in request.items()}
        if isinstance(request.get("rid"), str):
            one["rid"] = f"{request['rid']}_{at}"
        yield one


def _prompts(request: Mapping[str, Any], encode: Encode, limits: Limits) -> tuple[list[Any], bool]:
    text: Any = request.get("text")
    ids: Any = request.get("input_ids")
    if (text is None) == (ids is None):
        raise BadRequest("text, input_ids: give one of them")
    if text is not None:
        is_batch = isinstance(text, list)
        prompts = [_encoded(each, encode, limits) for each in (text if is_batch else [text])]
    else:
        is_batch = isinstance(ids, list) and bool(ids) and isinstance(ids[0], list)
        prompts = list(ids) if is_batch else [ids]
    if not prompts:
        raise BadRequest("text: the batch is empty")
    return prompts, is_batch


def _encoded(text: Any, encode: Encode, limits: Limits) -> list[int]:
    if not isinstance(text, str):
        raise BadRequest("text: must be a string or a list of strings")
    most = LONGEST_TOKEN * limits.total_tokens
    if len(text) > most:  # not tokenised at all: that would hold up everybody for seconds
        raise BadRequest(f"text: has {len(text)} characters, the engine takes at most {most}")
    try:
        ids = encode(text)
    except (ValueError, TypeError, OverflowError) as fault:
        raise BadRequest(f"text: the tokenizer refuses it: {fault}") from fault
    if not ids:
        raise BadRequest("text: the tokenizer makes no token of it")
    return ids


def _item(request: Mapping[str, Any], ids: Any, limits: Limits, can: Capabilities) -> Item:
    rid = request.get("rid")
    if not (rid is None or isinstance(rid, str)):
        raise BadRequest("rid: must be a string, or a list of one string for each prompt")
    _check_ids("input_ids", ids, limits.vocabulary)
    sampling = _sampling(request.get("sampling_params") or {}, limits, can)
    _check_length(len(ids), sampling.get("max_new_tokens"), limits)
    return Item(ids, sampling, _logprobs(request, len(ids), limits, can), rid)


def _check_ids(name: str, ids: Any, vocabulary: int) -> None:
    """An id outside the vocabulary gives NaN logits and writes NaN into the KV pool."""
    if not isinstance(ids, list) or not ids:
        raise BadRequest(f"{name}: must be a list of token ids, at least one")
    for token in ids:
        if type(token) is not int or not 0 <= token < vocabulary:
            raise BadRequest(f"{name}: {token!r} is no token id (0 to {vocabulary - 1})")


def _check_length(prompt: int, new: int | None, limits: Limits) -> None:
    """0.0.2 never answers a prompt over its limit, and keeps it in its queue for ever."""
    if prompt >= limits.input_tokens:
        raise BadRequest(
            f"the prompt has {prompt} tokens, the engine takes at most {limits.input_tokens - 1}"
        )
    if new is not None and prompt + new >= limits.total_tokens:
        raise BadRequest(
            f"max_new_tokens: {prompt} tokens of prompt and {new} new ones are more than "
            f"the context of {limits.total_tokens}"
        )


def _sampling(given: Any, limits: Limits, can: Capabilities) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise BadRequest("sampling_params: must be an object, or a list of one for each prompt")
    checked = {}
    for name, value in given.items():
        if name not in can.sampling:
            raise BadRequest(f"sampling_params.{name}: this engine has no such parameter")
        if value is None:
            continue
        _check_sampling(name, value, limits, can)
        if name != "n":
            checked[name] = value
    return checked


def _check_sampling(name: str, value: Any, limits: Limits, can: Capabilities) -> None:
    path = f"sampling_params.{name}"
    if name in GRAMMARS and not can.grammars:
        raise BadRequest(f"{path}: this engine ignores it, so its answer would be wrong")
    if name in NUMBERS and not _is_number(value):
        raise BadRequest(f"{path}: must be a number of a sensible size, not {value!r}")
    if name in INTEGERS and not _is_int64(value):
        raise BadRequest(f"{path}: must be a whole number, not {value!r}")
    if name in FLAGS and not isinstance(value, bool):
        raise BadRequest(f"{path}: must be true or false, not {value!r}")
    if name == "n" and value != 1:
        raise BadRequest(f"{path}: the engine makes one answer a prompt; repeat the prompt")
    if name == "stop" and not _are_strings([value] if isinstance(value, str) else value):
        raise BadRequest(f"{path}: must be a string or a list of strings")
    if name == "stop_token_ids" and value:
        _check_ids(path, value, limits.vocabulary)


def _is_number(value: Any) -> bool:
    # The comparison is false for NaN, and no overflow for a whole number of 400 digits.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < MOST


def _is_int64(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**31


def _are_strings(value: Any) -> bool:
    return isinstance(value, Sequence) and all(isinstance(each, str) and each for each in value)


def _logprobs(
    request: Mapping[str, Any], prompt: int, limits: Limits, can: Capabilities
) -> dict[str, Any]:
    asked = {name: request[name] for name in LOGPROBS & request.keys()}
    asked = {k: v for k, v in asked.items() if v is not None and v is not False and v != []}
    if not asked.get("return_logprob"):
        return {}
    if not can.logprobs:
        raise BadRequest("return_logprob: this engine version has no log-probabilities")
    for name in ("logprob_start_len", "top_logprobs_num"):
        if not _is_int64(asked.get(name, 0)):
            raise BadRequest(f"{name}: must be a whole number")
    if not -1 <= asked.get("logprob_start_len", -1) < prompt:
        raise BadRequest(f"logprob_start_len: must lie in the prompt (-1 to {prompt - 1})")
    if not 0 <= asked.get("top_logprobs_num", 0) <= limits.vocabulary:
        raise BadRequest("top_logprobs_num: must lie between 0 and the size of the vocabulary")
    if "token_ids_logprob" in asked:
        _check_ids("token_ids_logprob", asked["token_ids_logprob"], limits.vocabulary)
    return asked
