"""Makes the text of an answer of its tokens, as they come, and cuts it at a stop string.

Pure: knows how to decode ids, no engine.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

Decode = Callable[[Sequence[int]], str]

TOKENS_BEFORE = 5
"""Tokens that are decoded before new ones: a tokenizer may write one in another way where a text
begins (without the space before it)."""
MOST_UNSETTLED = 16
"""Tokens that are decoded anew with each piece, before their text counts as settled."""
HALF_A_CHARACTER = "\N{REPLACEMENT CHARACTER}"
"""Stands for a character whose last bytes are in tokens to come."""


class AnswerText:
    """The text of one answer."""

    def __init__(self, tokenizer: Any, prompt: Sequence[int], sampling: Mapping[str, Any]) -> None:
        self._decode: Decode = partial(
            tokenizer.decode,
            skip_special_tokens=sampling.get("skip_special_tokens", True),
            spaces_between_special_tokens=sampling.get("spaces_between_special_tokens", True),
        )
        self._is_trimmed = not sampling.get("no_stop_trim", False)
        self._stops = _as_list(sampling.get("stop")) if self._is_trimmed else []
        self._settled = ""
        """The text of the first tokens, to which nothing that comes changes anything."""
        self._settled_tokens = 0
        self._before = list(prompt[-TOKENS_BEFORE:])
        self._text_before = self._decode(self._before)

    def with_text(self, piece: Mapping[str, Any]) -> dict[str, Any]:
        """A piece of the answer, in the engine's schema, with its text."""
        ids, ended = piece["output_ids"], piece["meta_info"]["finish_reason"]
        return {"text": self.text_of(ids, ended) if ids else "", **piece}

    def text_of(self, ids: Sequence[int], ended: Mapping[str, Any] | None) -> str:
        """The text of all tokens so far; of an answer that goes on, as much of it as is sure."""
        matched = ended.get("matched") if ended and self._is_trimmed else None
        last = -1 if isinstance(matched, int) else len(ids)
        new = list(ids[self._settled_tokens : last])
        added = self._decode(self._before + new)[len(self._text_before) :]
        if ended is None:
            return self._sure_part(new, added)
        text = self._settled + added
        return cut_at(text, self._stops) if isinstance(matched, str) else text

    def _sure_part(self, new: Sequence[int], added: str) -> str:
        """The text without half a character, and without what may be the beginning of a stop."""
        sure = added.rstrip(HALF_A_CHARACTER)
        text = self._settled + sure
        if len(new) >= MOST_UNSETTLED and sure == added:
            self._settle(new, text)
        return text[: len(text) - begun_stop(text, self._stops)]

    def _settle(self, new: Sequence[int], text: str) -> None:
        self._settled = text
        self._settled_tokens += len(new)
        self._before = list(new[-TOKENS_BEFORE:])
        self._text_before = self._decode(self._before)


class AnswerTexts:
    """The texts of all answers to a request that asked for theirs at the end alone."""

    def __init__(self, tokenizer: Any, request: Mapping[str, Any]) -> None:
        """The request has ids in the place of its texts, and is not read before it is answered."""
        self._tokenizer = tokenizer
        self._request = request
        self._each: dict[int, AnswerText] = {}

    def add_text(self, piece: dict[str, Any]) -> dict[str, Any]:
        """A piece of one of the answers, with its text."""
        if "text" in piece:
            return piece
        index = piece.get("index", 0)
        if (wording := self._each.get(index)) is None:
            wording = self._each[index] = self._text_of(index)
        return wording.with_text(piece)

    def _text_of(self, index: int) -> AnswerText:
        prompt = index // (self._request.get("copies") or 1)
        ids, sampling = self._request["input_ids"], self._request.get("sampling_params")
        one = ids[prompt] if isinstance(ids[0], list) else ids
        its = sampling[prompt] if isinstance(sampling, list) else sampling
        return AnswerText(self._tokenizer, one, its or {})


def cut_at(text: str, stops: Sequence[str]) -> str:
    """The text before the first of the stop strings.

    One token may bring two of them, and the engine names the one that was listed first.
    """
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=None)]


def begun_stop(text: str, stops: Sequence[str]) -> int:
    """The number of characters at the end of the text that may begin a stop string."""
    longest = max((len(stop) for stop in stops), default=0)
    for size in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-size:]) for stop in stops):
            return size
    return 0


def _as_list(stops: str | Sequence[str] | None) -> Sequence[str]:
    return [stops] if isinstance(stops, str) else stops or []
