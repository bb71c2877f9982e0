"""One choice of an answer as it grows: which of its text is settled, and its log-probabilities."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from hotreload.server.ports import Fields


class NewTokens(NamedTuple):
    """Tokens with their log-probabilities, beside each the likeliest ones, and where they begin."""

    tokens: list[Any]
    tops: list[Any]
    offset: int


class Choice:
    """One choice, and how much of it was told. The engine gives the whole text so far each time."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._told = 0
        self._tokens_told = 0
        self.usage = (0, 0, 0)
        """Tokens of the prompt, those of them from the cache, and tokens of the answer."""
        self.has_begun = False

    def news(self, answer: Fields) -> tuple[str, Fields | None]:
        """The text that is new and will stay, and how the choice has ended, if it has."""
        self.has_begun = True
        meta = answer.get("meta_info", {})
        names = ("prompt_tokens", "cached_tokens", "completion_tokens")
        prompt, cached, completion = (int(meta.get(name) or 0) for name in names)
        self.usage = (prompt, cached, completion)
        ended = meta.get("finish_reason")
        text = self._settled(answer["text"], ended)
        new = text[self._told :]
        self._told = max(self._told, len(text))
        return new, ended or None

    def new_logprobs(self, answer: Fields) -> NewTokens | None:
        """The tokens that are new, if their log-probabilities were asked for."""
        meta = answer.get("meta_info", {})
        tokens = meta.get("output_token_logprobs")
        if tokens is None:
            return None
        first, self._tokens_told = self._tokens_told, len(tokens)
        tops = meta.get("output_top_logprobs") or [[] for _ in tokens]
        offset = sum(len(text) for _, _, text in tokens[:first])
        return NewTokens(tokens[first:], tops[first:], offset)

    def _settled(self, text: str, ended: Fields | None) -> str:
        """Without the stop string it ended at; while it grows, without what may become one."""
        if ended is None:
            return text[: len(text) - begun_stop(text, self._stops)]
        if not isinstance(ended.get("matched"), str):
            return text
        # One token may bring two of them, and the engine names the one that was listed first.
        return text[
            : min((at for stop in self._stops if (at := text.find(stop)) >= 0), default=None)
        ]


def begun_stop(text: str, stops: Sequence[str]) -> int:
    """The number of characters at the end of the text that may begin a stop string."""
    longest = max((len(stop) for stop in stops), default=0)
    for size in range(min(longest, len(text)), 0, -1):
        if any(stop.startswith(text[-size:]) for stop in stops):
            return size
    return 0


def completion_logprobs(new: NewTokens | None) -> Fields | None:
    """Log-probabilities as /v1/completions has them."""
    if new is None:
        return None
    texts = [text for _, _, text in new.tokens]
    return {
        "tokens": texts,
        "token_logprobs": [logprob for logprob, _, _ in new.tokens],
        "top_logprobs": [{text: logprob for logprob, _, text in top or ()} for top in new.tops],
        "text_offset": list(accumulate(map(len, texts[:-1]), initial=new.offset)) if texts else [],
    }


def chat_logprobs(new: NewTokens | None) -> Fields | None:
    """Log-probabilities as /v1/chat/completions has them."""
    if new is None:
        return None
    content = [
        {**_token(token), "top_logprobs": [_token(each) for each in top or ()]}
        for token, top in zip(new.tokens, new.tops, strict=True)
    ]
    return {"content": content, "refusal": None}


def _token(entry: Sequence[Any]) -> Fields:
    logprob, _, text = entry
    return {"token": text, "logprob": logprob, "bytes": list(str(text).encode())}
