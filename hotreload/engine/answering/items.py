"""Prompts that are fit for the engine, and the bound of what their answers may hold."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from hotreload.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt, fit for the engine."""

    input_ids: list[int] = field(repr=False)
    sampling_params: dict[str, Any]
    logprobs: dict[str, Any]
    rid: str | None
    grammar: Any = None
    """The request's compiled grammar, which lives as long as a request follows it."""
    is_probe: bool = False
    """True for one of ours: what clients wish to end, it is none of."""
    name: str = ""
    """Its name in its lane; empty for one that is given a name of its own."""
    is_prompt_alone: bool = False
    """True if its answer has no token: the one that the engine makes is left out."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """A whole request: one prompt, or a batch of them."""

    items: tuple[Item, ...]
    is_batch: bool
    stream: bool
    text_at_end: bool = False
    """True if of a stream only the last piece of each answer is to have its text."""
    calls: Callable[[], Any] | None = None
    """Makes what reads the calls of tools out of an answer, if there are tools."""


MOST_LOGPROBS = 2**22
"""The most log-probabilities that the answers to one request may hold: about a gigabyte of them."""
USUAL_TOKENS = 128
"""Tokens that the engine makes when the request does not say."""


def check_logprobs(items: Iterable[Item]) -> None:
    """Refuse a request for more log-probabilities than that: they could take all memory."""
    asked = sum(_logprobs(item) for item in items)
    if asked > MOST_LOGPROBS:
        raise BadRequest(
            f"top_logprobs_num: the answers could hold {asked} log-probabilities, and "
            f"{MOST_LOGPROBS} are allowed; ask for fewer of them, for fewer tokens "
            "(max_new_tokens), or for fewer prompts at a time",
            param="top_logprobs_num",
        )


def _logprobs(item: Item) -> int:
    if not item.logprobs:
        return 0
    start = item.logprobs.get("logprob_start_len", -1)
    prompt = len(item.input_ids) - start if start >= 0 else 0
    tokens: int = prompt + item.sampling_params.get("max_new_tokens", USUAL_TOKENS)
    beside: int = item.logprobs.get("top_logprobs_num", 0)
    return tokens * (1 + beside + len(item.logprobs.get("token_ids_logprob", ())))
