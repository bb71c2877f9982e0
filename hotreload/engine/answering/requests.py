"""Checks requests in the engine's own schema before they can reach the engine.

Pure: knows limits and capabilities, no engine. The server adds `messages`, `tools` and `copies`
for OpenAI's routes, and `text_at_end` where it makes the texts of a stream. `sampling` checks how
the answer is to be made.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from hotreload.engine.answering.items import Item, Parsed, check_logprobs
from hotreload.engine.answering.sampling_params import (
    LOGPROBS,
    SAMPLING_PARAMETERS,
    asked_logprobs,
    bad,
    check_ids,
    check_sampling,
    stop_characters,
)
from hotreload.engine.capabilities import Capabilities, EngineLimits
from hotreload.errors import BadRequest, cut

LONGEST_TOKEN = 32
"""Characters that one token of a good tokenizer has at most."""
USUAL_TOKEN = 8
"""A text with more characters than this for each token it may have is first encoded piece by piece,
to find out if it is too long."""
TEXT_PIECE = 2**14
SEAM = 64
"""Tokens that a text may have more because it was cut there."""
RID_CHARACTERS = 128
"""Characters of a client's id: it comes back with every piece of every answer."""
STOP_CHARACTERS_IN_ALL = 2**16
"""Characters that the stop strings of all prompts may have together: on its way through the
engine each prompt has its own copy of them."""
SEED_STEP = 1_000_003
"""Distance of the seeds of an answer's copies: copies of neighbouring seeds share none."""
TOO_LONG = "context_length_exceeded"

Encode = Callable[[str], list[int]]
Messages = Sequence[Mapping[str, Any]]
Chat = Callable[[Messages, Mapping[str, Any], Any], list[int]]
"""Makes the ids of messages, with arguments of the template, and tools."""

CHAT_FIELDS = frozenset({"messages", "template_args", "tools", "tool_choice"})
PROMPTS = CHAT_FIELDS | {"text", "input_ids"}
OF_THE_SERVER = {"copies", "text_at_end", "seed_is_a_wish"}
"""Fields that no client sends."""
FIELDS = PROMPTS | LOGPROBS | OF_THE_SERVER | {"sampling_params", "stream", "rid"}


def parse(
    request: Mapping[str, Any],
    *,
    limits: EngineLimits,
    can: Capabilities,
    encode: Encode,
    chat: Chat,
) -> Parsed:
    """The request as items; BadRequest names the parameter that cannot be served.

    This may take seconds: it encodes long texts and renders chats.
    """
    return items_of(with_ids(request, limits, encode, chat), limits=limits, can=can)


def with_ids(
    request: Mapping[str, Any], limits: EngineLimits, encode: Encode, chat: Chat
) -> Mapping[str, Any]:
    """The request with ids in the place of texts, or of a chat; it is whole, and not yet checked.

    It means the same, and says it in the engine's own schema: any client may send the like.
    """
    for name in request:
        if name not in FIELDS:
            raise bad(cut(name), _why_not(name))
    stream = request.get("stream") or False
    if not isinstance(stream, bool):
        raise bad("stream", "must be true or false")
    _check_rids(request.get("rid"))
    if request.get("messages") is not None:
        request = _as_ids(request, chat, limits)
    text = request.get("text")
    if (text is None) == (request.get("input_ids") is None):
        raise bad("text, input_ids", "give one of them")
    if text is None:
        return request
    ids = _encode_texts(text if isinstance(text, list) else [text], encode, limits)
    rest = {name: value for name, value in request.items() if name not in PROMPTS}
    return {**rest, "input_ids": ids if isinstance(text, list) else ids[0]}


def _why_not(name: str) -> str:
    if name in SAMPLING_PARAMETERS:
        return f"a sampling parameter goes into sampling_params={{{name!r}: …}}"
    return "this server has no such parameter"


def items_of(request: Mapping[str, Any], *, limits: EngineLimits, can: Capabilities) -> Parsed:
    """The items of what `with_ids` made, which are checked here; BadRequest as `parse`."""
    if request.get("seed_is_a_wish") and not can.seeds:
        request = {**request, "sampling_params": _without_seed(request["sampling_params"])}
    ids = request["input_ids"]
    is_batch = isinstance(ids, list) and bool(ids) and isinstance(ids[0], list)
    prompts = ids if is_batch else [ids]
    check_once = _checked_once(limits, can)
    items = tuple(
        _item(one, ids, limits, can, check_once)
        for one, ids in zip(_one_by_one(request, len(prompts), is_batch), prompts, strict=True)
    )
    copies = request.get("copies") or 1
    if copies > 1:
        items = tuple(_copy(item, at, can) for item in items for at in range(copies))
    _check_stops(items)
    check_logprobs(items)
    stream, text_at_end = (bool(request.get(name)) for name in ("stream", "text_at_end"))
    return Parsed(items, is_batch or copies > 1, stream, text_at_end)


def _without_seed(sampling: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in sampling.items() if name != "sampling_seed"}


def check_length(name: str, text: str, limits: EngineLimits) -> None:
    """Refuse a text that cannot fit, before the seconds it takes to encode it."""
    most = LONGEST_TOKEN * limits.total_tokens
    if len(text) > most:
        raise bad(name, f"has {len(text)} characters, the engine takes at most {most}", TOO_LONG)


def encode_within_limits(text: str, encode: Encode, limits: EngineLimits) -> list[int]:
    """The ids of a text; encoding stops as soon as the text is surely too long."""
    if len(text) > max(TEXT_PIECE, USUAL_TOKEN * limits.input_tokens):
        tokens = 0
        for at in range(0, len(text), TEXT_PIECE):
            tokens += max(0, len(encode(text[at : at + TEXT_PIECE])) - SEAM)
            if tokens >= limits.input_tokens:
                raise _too_long(f"more than {tokens}", limits)
    return encode(text)


def _as_ids(request: Mapping[str, Any], chat: Chat, limits: EngineLimits) -> Mapping[str, Any]:
    """A chat as the ids of its prompt; its answer may fill the context, as OpenAI's may."""
    messages = request["messages"]
    size = sum(len(message["content"]) + 1 for message in messages)
    if size > (most := LONGEST_TOKEN * limits.total_tokens):
        words = f"{size} characters are too many, the engine takes at most {most}"
        raise bad("messages", words, TOO_LONG)
    ids = chat(messages, request.get("template_args") or {}, request.get("tools"))
    room = {"max_new_tokens": max(1, limits.total_tokens - len(ids) - 1)}
    rest = {name: request[name] for name in request.keys() - CHAT_FIELDS}
    return {**rest, "input_ids": ids, "sampling_params": room | request["sampling_params"]}


def _copy(item: Item, number: int, can: Capabilities) -> Item:
    """The item with a seed of its own: with one seed all copies would say the same."""
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
            raise bad(name, f"{len(value)} values for {count} prompts")
    for at in range(count):
        one = {k: v[at] if isinstance(v, list) else v for k, v in request.items()}
        if isinstance(request.get("rid"), str):
            one["rid"] = f"{request['rid']}_{at}"
        yield one


def _encode_texts(texts: list[Any], encode: Encode, limits: EngineLimits) -> list[list[int]]:
    """The ids of each text; every text is checked before the first is encoded."""
    if not texts:
        raise bad("text", "the batch is empty")
    for text in texts:
        if not isinstance(text, str):
            raise bad("text", "must be a string or a list of strings")
        check_length("text", text, limits)
    return [_ids_of(text, encode, limits) for text in texts]


def _ids_of(text: str, encode: Encode, limits: EngineLimits) -> list[int]:
    with telling_refusals():
        ids = encode_within_limits(text, encode, limits)
    if not ids:
        what = "is empty" if not text else "the tokenizer makes no token of it"
        raise bad("text", f"{what}; give at least one token to go on from")
    _check_fits(ids, limits)
    return ids


@contextmanager
def telling_refusals() -> Iterator[None]:
    """Say that the tokenizer refuses a text."""
    try:
        yield
    except (ValueError, TypeError, OverflowError) as fault:
        raise bad("text", f"the tokenizer refuses it: {cut(str(fault), 300)}") from fault


CheckSampling = Callable[[Any], dict[str, Any]]


def _checked_once(limits: EngineLimits, can: Capabilities) -> CheckSampling:
    """The check of sampling parameters, made once where all prompts share them."""
    known: list[tuple[Any, dict[str, Any]]] = []

    def check(given: Any) -> dict[str, Any]:
        if not known or known[0][0] is not given:
            known[:] = [(given, check_sampling(given or {}, limits, can))]
        return known[0][1]

    return check


def _item(
    request: Mapping[str, Any],
    ids: Any,
    limits: EngineLimits,
    can: Capabilities,
    check: CheckSampling,
) -> Item:
    if isinstance(ids, list):
        _check_fits(ids, limits)
    check_ids("input_ids", ids, limits.vocabulary)
    sampling = check(request.get("sampling_params"))
    _check_new(len(ids), sampling, limits)
    logprobs = asked_logprobs(request, len(ids), limits, can)
    item = Item(ids, sampling, logprobs, request.get("rid"))
    return item if sampling.get("max_new_tokens") != 0 else _prompt_alone(item)


def _prompt_alone(item: Item) -> Item:
    """The item with one token, which is left out: upstream makes it all the same.

    With none it also divides by their sum where it takes a request back, which ends the engine.
    """
    sampling = {**item.sampling_params, "max_new_tokens": 1}
    return replace(item, sampling_params=sampling, is_prompt_alone=True)


def _check_rids(given: Any) -> None:
    for rid in given if isinstance(given, list) else [given]:
        if not (rid is None or isinstance(rid, str)):
            raise bad("rid", "must be a string, or a list of one string for each prompt")
        if rid is not None and len(rid) > RID_CHARACTERS:
            raise bad("rid", f"{len(rid)} characters are too many, there may be {RID_CHARACTERS}")


def _check_fits(ids: list[Any], limits: EngineLimits) -> None:
    """Refuse a prompt over the limit: 0.0.2 never answers it, and keeps it queued for ever."""
    if len(ids) >= limits.input_tokens:
        raise _too_long(str(len(ids)), limits)


def _too_long(tokens: str, limits: EngineLimits) -> BadRequest:
    return BadRequest(
        f"the prompt has {tokens} tokens, the engine takes at most {limits.input_tokens - 1}",
        code=TOO_LONG,
    )


def _check_new(prompt: int, sampling: Mapping[str, Any], limits: EngineLimits) -> None:
    new, least = sampling.get("max_new_tokens"), sampling.get("min_new_tokens")
    if new is not None and least is not None and least > new:
        raise bad("sampling_params.min_new_tokens", f"is more than the {new} there may be")
    if new is not None and prompt + max(1, new) >= limits.total_tokens:
        raise bad(
            "max_new_tokens",
            f"{prompt} tokens of prompt and {new} new ones are more than "
            f"the context of {limits.total_tokens}",
            TOO_LONG,
        )


def _check_stops(items: Sequence[Item]) -> None:
    """Refuse stop strings that are short for one prompt, and too long for all of them."""
    stops = sum(stop_characters(item.sampling_params) for item in items)
    if stops > STOP_CHARACTERS_IN_ALL:
        words = f"{stops} characters for all prompts, there may be {STOP_CHARACTERS_IN_ALL}"
        raise bad("sampling_params.stop", words)
