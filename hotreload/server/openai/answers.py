"""The engine's answers as OpenAI's API tells them, whole and piece by piece."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hotreload.errors import HotReloadError
from hotreload.server.answerer import Item
from hotreload.server.openai.choices import Choice, NewTokens, chat_logprobs, completion_logprobs
from hotreload.server.ports import Fields
from hotreload.server.problems import openai_fields
from hotreload.types import Generation


@dataclass(frozen=True, slots=True)
class Shape:
    """The form of one route's answers."""

    prefix: str
    whole_object: str
    piece_object: str
    whole: Callable[[str], Fields]
    """A choice with this text."""
    piece: Callable[[str, bool], Fields]
    """A choice with this new text, and whether it is its first."""
    logprobs: Callable[[NewTokens | None], Fields | None]


COMPLETION = Shape(
    prefix="cmpl",
    whole_object="text_completion",
    piece_object="text_completion",
    whole=lambda text: {"text": text},
    piece=lambda text, is_first: {"text": text},
    logprobs=completion_logprobs,
)
CHAT = Shape(
    prefix="chatcmpl",
    whole_object="chat.completion",
    piece_object="chat.completion.chunk",
    whole=lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
    piece=lambda text, is_first: {
        "delta": ({"role": "assistant"} if is_first else {}) | {"content": text}
    },
    logprobs=chat_logprobs,
)


class OpenAIAnswer:
    """Tells one answer; it remembers what of each choice was told already."""

    def __init__(
        self, shape: Shape, *, model: str, stops: Sequence[str], copies: int, has_usage: bool
    ) -> None:
        self._shape = shape
        self._model = model
        self._stops = stops
        self._copies = copies
        self._has_usage = has_usage
        self._id = f"{shape.prefix}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._choices: dict[int, Choice] = {}

    def whole(self, item: Item, generation: Generation) -> Fields:
        """Every choice at once, and the usage."""
        answers = item if isinstance(item, list) else [item]
        choices = [self._whole_choice(at, answer) for at, answer in enumerate(answers)]
        told = self._told(self._shape.whole_object, generation)
        return told | {"choices": choices, "usage": self._usage()}

    def piece(self, answer: Fields, generation: Generation) -> list[Fields]:
        """The new part of one choice; nothing while all of it may still become a stop string."""
        index = answer.get("index", 0)
        choice = self._choice(index)
        is_first = not choice.has_begun
        text, ended = choice.news(answer)
        if not (is_first or text or ended):
            return []
        told = self._shape.piece(text, is_first) | self._about(index, choice, answer, ended)
        return [self._chunk([told], None, generation)]

    def end(self, generation: Generation) -> list[Fields]:
        """The usage, if the client wants it in a stream."""
        return [self._chunk([], self._usage(), generation)] if self._has_usage else []

    def failed(self, error: HotReloadError) -> Fields:
        """The error that OpenAI's client raises in place of the next piece."""
        return {"error": openai_fields(error)}

    def _choice(self, index: int) -> Choice:
        return self._choices.setdefault(index, Choice(self._stops))

    def _chunk(self, choices: list[Fields], usage: Any, generation: Generation) -> Fields:
        told = self._told(self._shape.piece_object, generation) | {"choices": choices}
        return told | ({"usage": usage} if self._has_usage else {})

    def _told(self, name: str, generation: Generation) -> Fields:
        return {
            "id": self._id,
            "object": name,
            "created": self._created,
            "model": self._model,
            "system_fingerprint": generation.fingerprint,
            "hotreload": generation.stamp,
        }

    def _usage(self) -> Fields:
        """Each prompt counts once, however often it was answered."""
        used = {index: choice.usage for index, choice in self._choices.items()}
        prompts = [one for index, one in used.items() if index % self._copies == 0]
        prompt, cached = sum(one[0] for one in prompts), sum(one[1] for one in prompts)
        completion = sum(one[2] for one in used.values())
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def _whole_choice(self, index: int, answer: Fields) -> Fields:
        choice = self._choice(index)
        text, ended = choice.news(answer)
        return self._shape.whole(text) | self._about(index, choice, answer, ended)

    def _about(self, index: int, choice: Choice, answer: Fields, ended: Fields | None) -> Fields:
        told: Fields = {"index": index, "finish_reason": ended["type"] if ended else None}
        if ended and ended["type"] == "abort":  # not OpenAI's; `stop` or `length` would be a lie
            told["stop_reason"] = ended.get("message")
        return told | {"logprobs": self._shape.logprobs(choice.new_logprobs(answer))}
