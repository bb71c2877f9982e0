"""Requests in the engine's own schema, checked before they can reach the engine.

Many things a client may send end the process, poison the KV pool or are silently ignored.
Pure: knows limits and capabilities, no engine. `messages` and `copies` are the server's, for
OpenAI's routes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hotreload.errors import BadRequest

MOST = 1e9
"""No sampling parameter is sensibly larger."""
LONGEST_TOKEN = 32
"""Characters of one token, at most, as good tokenizers have it."""
STOPS = 32
STOP_CHARACTERS = 256
"""The engine encodes each stop string on our loop, and looks for each after every token: a long
list of them would hold up everybody."""
STOP_IDS = 256

SEED_STEP = 1_000_003
"""Between the seeds of an answer's copies: those of two neighbouring seeds do not meet."""
UNSUPPORTED = "unsupported_parameter"
TOO_LONG = "context_length_exceeded"

Encode = Callable[[str], list[int]]
Messages = Sequence[Mapping[str, str]]
Chat = Callable[[Messages, Mapping[str, Any]], list[int]]

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
PROMPTS = frozenset({"text", "input_ids", "messages", "template_args"})
FIELDS = PROMPTS | LOGPROBS | {"sampling_params", "stream", "rid", "copies"}
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
    seeds: bool
    """Both versions ignore a seed, unless started with enable_deterministic_sampling."""
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
    request: Mapping[str, Any], *, limits: Limits, can: Capabilities, encode: Encode, chat: Chat
) -> Parsed:
    """The request as items; BadRequest names the parameter that cannot be served.

    Takes its time: a long text is encoded here, a chat rendered.
    """
    for name in request:
        if name not in FIELDS:
            raise _bad(name, "this server has no such parameter")
    stream = request.get("stream") or False
    if not isinstance(stream, bool):
        raise _bad("stream", "must be true or false")
    if request.get("messages") is not None:
        request = _as_ids(request, chat, limits)
    prompts, is_batch = _prompts(request, encode, limits)
    items = tuple(
        _item(one, ids, limits, can)
        for one, ids in zip(_one_by_one(request, len(prompts), is_batch), prompts, strict=True)
    )
    copies = request.get("copies") or 1
    if copies > 1:
        items = tuple(_copy(item, at, can) for item in items for at in range(copies))
    return Parsed(items, is_batch or copies > 1, stream)


def _as_ids(request: Mapping[str, Any], chat: Chat, limits: Limits) -> Mapping[str, Any]:
    """A chat as the ids of its prompt; its answer may fill the context, as OpenAI's may."""
    messages = request["messages"]
    size = sum(len(message["content"]) + 1 for message in messages)
    if size > (most := LONGEST_TOKEN * limits.total_tokens):
        raise _bad("messages", f"{size} characters are too many, the engine takes at most {most}")
    ids = chat(messages, request.get("template_args") or {})
    room = {"max_new_tokens": max(1, limits.total_tokens - len(ids) - 1)}
    rest = {name: request[name] for name in request.keys() - {"messages", "template_args"}}
    return {**rest, "input_ids": ids, "sampling_params": room | request["sampling_params"]}


def _copy(item: Item, number: int, can: Capabilities) -> Item:
    """With a seed of its own, or all copies would say the same."""
    if not can.seeds:
        return item
    seed = (item.sampling_params.get("sampling_seed", 0) + number * SEED_STEP) % 2**31
    return replace(item, sampling_params={**item.sampling_params, "sampling_seed": seed})


def _one_by_one(
    request: Mapping[str, Any], count: int, is_batch: bool
) -> Iterator[Mapping[str, Any]]:
    """The parameters of each prompt: in a batch any of them may be a list of one each."""
    if not is_batch:
        yield request
        return
    for name, value in request.items():
        if isinstance(value, list) and len(value) != count:
            raise _bad(name, f"{len(value)} values for {count} prompts")
    for at in range(count):
        one = {k: v[at] if isinstance(v, list) else v for k, v in request.items()}
        if isinstance(request.get("rid"), str):
            one["rid"] = f"{request['rid']}_{at}"
        yield one


def _prompts(request: Mapping[str, Any], encode: Encode, limits: Limits) -> tuple[list[Any], bool]:
    text: Any = request.get("text")
    ids: Any = request.get("input_ids")
    if (text is None) == (ids is None):
        raise _bad("text, input_ids", "give one of them")
    if text is not None:
        is_batch = isinstance(text, list)
        prompts = [_encoded(each, encode, limits) for each in (text if is_batch else [text])]
    else:
        is_batch = isinstance(ids, list) and bool(ids) and isinstance(ids[0], list)
        prompts = list(ids) if is_batch else [ids]
    if not prompts:
        raise _bad("text", "the batch is empty")
    return prompts, is_batch


def check_length(name: str, text: str, limits: Limits) -> None:
    """Refuse a text that cannot fit, before the seconds it takes to encode it."""
    most = LONGEST_TOKEN * limits.total_tokens
    if len(text) > most:
        raise _bad(name, f"has {len(text)} characters, the engine takes at most {most}")


def _encoded(text: Any, encode: Encode, limits: Limits) -> list[int]:
    if not isinstance(text, str):
        raise _bad("text", "must be a string or a list of strings")
    check_length("text", text, limits)
    try:
        ids = encode(text)
    except (ValueError, TypeError, OverflowError) as fault:
        raise _bad("text", f"the tokenizer refuses it: {fault}") from fault
    if not ids:
        raise _bad("text", "the tokenizer makes no token of it")
    return ids


def _item(request: Mapping[str, Any], ids: Any, limits: Limits, can: Capabilities) -> Item:
    rid = request.get("rid")
    if not (rid is None or isinstance(rid, str)):
        raise _bad("rid", "must be a string, or a list of one string for each prompt")
    _check_ids("input_ids", ids, limits.vocabulary)
    sampling = _sampling(request.get("sampling_params") or {}, limits, can)
    _check_tokens(len(ids), sampling, limits)
    return Item(ids, sampling, _logprobs(request, len(ids), limits, can), rid)


def _bad(param: str, words: str, code: str | None = None) -> BadRequest:
    return BadRequest(f"{param}: {words}", code=code, param=param)


def _check_ids(name: str, ids: Any, vocabulary: int) -> None:
    """An id outside the vocabulary gives NaN logits and writes NaN into the KV pool."""
    if not isinstance(ids, list) or not ids:
        raise _bad(name, "must be a list of token ids, at least one")
    for token in ids:
        if type(token) is not int or not 0 <= token < vocabulary:
            raise _bad(name, f"{token!r} is no token id (0 to {vocabulary - 1})")


def _check_tokens(prompt: int, sampling: Mapping[str, Any], limits: Limits) -> None:
    """0.0.2 never answers a prompt over its limit, and keeps it in its queue for ever."""
    new = sampling.get("max_new_tokens")
    if prompt >= limits.input_tokens:
        raise BadRequest(
            f"the prompt has {prompt} tokens, the engine takes at most {limits.input_tokens - 1}",
            code=TOO_LONG,
        )
    least = sampling.get("min_new_tokens")
    if new is not None and least is not None and least > new:
        raise _bad("sampling_params.min_new_tokens", f"is more than the {new} there may be")
    if new is not None and prompt + new >= limits.total_tokens:
        raise BadRequest(
            f"max_new_tokens: {prompt} tokens of prompt and {new} new ones are more than "
            f"the context of {limits.total_tokens}",
            code=TOO_LONG,
            param="max_new_tokens",
        )


def _sampling(given: Any, limits: Limits, can: Capabilities) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise _bad("sampling_params", "must be an object, or a list of one for each prompt")
    checked = {}
    for name, value in given.items():
        if name not in can.sampling:
            raise _bad(f"sampling_params.{name}", "this engine has no such parameter")
        if value is None:
            continue
        _check_sampling(name, value, limits, can)
        if name != "n":
            checked[name] = value
    return checked


def _check_sampling(name: str, value: Any, limits: Limits, can: Capabilities) -> None:
    path = f"sampling_params.{name}"
    if name in GRAMMARS and not can.grammars:
        raise _bad(path, "this engine ignores it, so its answer would be wrong", UNSUPPORTED)
    if name == "sampling_seed" and value is not None and not can.seeds:
        words = "this engine ignores it without [engine.args] enable_deterministic_sampling = true"
        raise _bad(path, words, UNSUPPORTED)
    if name in NUMBERS and not _is_number(value):
        raise _bad(path, f"must be a number of a sensible size, not {value!r}")
    if name in INTEGERS and not _is_int64(value):
        raise _bad(path, f"must be a whole number, not {value!r}")
    if name in FLAGS and not isinstance(value, bool):
        raise _bad(path, f"must be true or false, not {value!r}")
    if name == "n" and value != 1:
        raise _bad(path, "the engine makes one answer a prompt; repeat the prompt")
    if name == "stop":
        _check_stops(path, [value] if isinstance(value, str) else value)
    if name == "stop_token_ids" and value:
        if isinstance(value, list) and len(value) > STOP_IDS:
            raise _bad(path, f"{len(value)} ids are too many, there may be {STOP_IDS}")
        _check_ids(path, value, limits.vocabulary)


def _check_stops(path: str, stops: Any) -> None:
    if isinstance(stops, list) and len(stops) > STOPS:
        raise _bad(path, f"{len(stops)} strings are too many, there may be {STOPS}")
    if not _are_strings(stops):
        raise _bad(path, "must be a string or a list of strings")
    if any(len(stop) > STOP_CHARACTERS for stop in stops):
        raise _bad(path, f"a string of it has more than {STOP_CHARACTERS} characters")


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
        raise _bad("return_logprob", "this engine version has no log-probabilities", UNSUPPORTED)
    for name in ("logprob_start_len", "top_logprobs_num"):
        if not _is_int64(asked.get(name, 0)):
            raise _bad(name, "must be a whole number")
    if not -1 <= asked.get("logprob_start_len", -1) < prompt:
        raise _bad("logprob_start_len", f"must lie in the prompt (-1 to {prompt - 1})")
    if not 0 <= asked.get("top_logprobs_num", 0) <= limits.vocabulary:
        raise _bad("top_logprobs_num", "must lie between 0 and the size of the vocabulary")
    if "token_ids_logprob" in asked:
        _check_ids("token_ids_logprob", asked["token_ids_logprob"], limits.vocabulary)
    return asked
