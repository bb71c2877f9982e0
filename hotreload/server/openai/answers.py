"""The engine's answers in OpenAI's format, whole and as a stream."""

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict

from hotreload.errors import HotReloadError
from hotreload.json_fields import Fields
from hotreload.server.http.problems import openai_fields
from hotreload.server.model import EngineAnswer, answers_in
from hotreload.server.openai.requests import Echo
from hotreload.types import Generation, StampFields


class NewTokens(NamedTuple):
    """New tokens with log-probabilities, the likeliest tokens beside each, and their offset."""

    tokens: list[Any]
    tops: list[Any]
    offset: int


class UsageFields(TypedDict):
    """The tokens of a request and its answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Fields


class AnsweredFields(TypedDict):
    """The beginning of an answer, and its usage."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    hotreload: StampFields
    usage: UsageFields


class ChoiceFields(TypedDict):
    """One answer of several, without its text."""

    index: int
    finish_reason: str | None
    logprobs: Fields | None


class TextChoiceFields(ChoiceFields):
    """One text."""

    text: str


class CompletionFields(AnsweredFields):
    """An answer of /v1/completions."""

    object: Literal["text_completion"]
    choices: list[TextChoiceFields]


class CallFields(TypedDict):
    """The call of a function: its arguments are JSON."""

    name: str
    arguments: str


class ToolCallFields(TypedDict):
    """A tool call that waits for its result."""

    id: str
    type: Literal["function"]
    function: CallFields


class MessageFields(TypedDict):
    """The message that the model wrote."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    tool_calls: NotRequired[list[ToolCallFields]]


class MessageChoiceFields(ChoiceFields):
    """One message."""

    message: MessageFields


class ChatCompletionFields(AnsweredFields):
    """An answer of /v1/chat/completions."""

    object: Literal["chat.completion"]
    choices: list[MessageChoiceFields]


@dataclass(slots=True)
class Choice:
    """One choice and the part of it that was sent; the engine yields the whole text each time."""

    echo: Echo | None = None
    usage: tuple[int, int, int] = (0, 0, 0)
    """The numbers of prompt tokens, of cached ones among them, and of completion tokens."""
    has_begun: bool = False
    sent_length: int = 0
    """The characters that were sent; the numbers of tokens and of calls."""
    sent_tokens: int = 0
    sent_calls: int = 0

    def take_new_text(self, answer: Fields) -> tuple[str, Fields | None]:
        """Return the text that was not sent yet, and how the choice ended, if it has."""
        self.has_begun = True
        meta = answer.get("meta_info", {})
        self.usage = (
            meta.get("prompt_tokens") or 0,
            meta.get("cached_tokens") or 0,
            meta.get("completion_tokens") or 0,
        )
        ended: Fields | None = meta.get("finish_reason")
        text: str = answer["text"]
        if self.echo is not None:
            text = self.echo.text(answer, text)
        new = text[self.sent_length :]
        self.sent_length = max(self.sent_length, len(text))
        return new, ended or None

    def take_new_calls(self, answer: Fields) -> list[Fields]:
        """Return the tool calls that were not sent yet, each with a new id."""
        calls, first = answer.get("tool_calls") or [], self.sent_calls
        self.sent_calls = len(calls)
        return [
            {
                "index": at,
                "id": f"call_{uuid.uuid4().hex[:24]}",
                "type": "function",
                "function": call,
            }
            for at, call in enumerate(calls[first:], first)
        ]

    def reason(self, ended: Fields | None) -> str | None:
        """Return the finish reason; "tool_calls" where calls wait for their results."""
        if ended is None:
            return None
        kind: str = ended["type"]
        return "tool_calls" if kind == "stop" and self.sent_calls else kind

    def take_new_logprobs(self, answer: Fields) -> NewTokens | None:
        """Return the tokens that were not sent yet, if the client wants log-probabilities."""
        meta = answer.get("meta_info", {})
        tokens = meta.get("output_token_logprobs")
        if tokens is None:
            return None
        tops = meta.get("output_top_logprobs")
        if self.echo is not None:
            tokens = self.echo.tokens(meta, "token_logprobs")
            tops = self.echo.tokens(meta, "top_logprobs")
        first, self.sent_tokens = self.sent_tokens, len(tokens)
        tops = tops or [[] for _ in tokens]
        offset = sum(len(text) for _, _, text in tokens[:first])
        return NewTokens(tokens[first:], tops[first:], offset)


def completion_logprobs(new: NewTokens | None) -> Fields | None:
    """Return log-probabilities in the format of /v1/completions."""
    if new is None:
        return None
    texts = [text for _, _, text in new.tokens]
    return {
        "tokens": texts,
        "token_logprobs": [logprob for logprob, _, _ in new.tokens],
        "top_logprobs": [
            None if token[0] is None else {text: logprob for logprob, _, text in top or ()}
            for token, top in zip(new.tokens, new.tops, strict=True)
        ],
        "text_offset": list(accumulate(map(len, texts[:-1]), initial=new.offset)) if texts else [],
    }


def chat_logprobs(new: NewTokens | None) -> Fields | None:
    """Return log-probabilities in the format of /v1/chat/completions."""
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


@dataclass(frozen=True, slots=True)
class AnswerShape:
    """The format of one route's answers."""

    prefix: str
    whole_object: str
    piece_object: str
    whole: Callable[[str, list[Fields]], Fields]
    """Returns a choice with this text and these tool calls."""
    piece: Callable[[str, list[Fields], bool], Fields]
    """Returns a choice with this new text and these new tool calls; true for its first piece."""
    logprobs: Callable[[NewTokens | None], Fields | None]


COMPLETION_SHAPE = AnswerShape(
    prefix="cmpl",
    whole_object="text_completion",
    piece_object="text_completion",
    whole=lambda text, calls: {"text": text},
    piece=lambda text, calls, is_first: {"text": text},
    logprobs=completion_logprobs,
)


def _message(text: str, calls: list[Fields]) -> Fields:
    message = MessageFields(role="assistant", content=text, refusal=None)
    if calls:
        bare = [
            ToolCallFields(id=each["id"], type="function", function=each["function"])
            for each in calls
        ]
        message |= {"content": text or None, "tool_calls": bare}
    return {"message": message}


def _delta(text: str, calls: list[Fields], is_first: bool) -> Fields:
    fields: Fields = {"role": "assistant"} if is_first else {}
    if text or not calls:
        fields["content"] = text
    return {"delta": fields | ({"tool_calls": calls} if calls else {})}


CHAT_SHAPE = AnswerShape(
    prefix="chatcmpl",
    whole_object="chat.completion",
    piece_object="chat.completion.chunk",
    whole=_message,
    piece=_delta,
    logprobs=chat_logprobs,
)


@dataclass(slots=True)
class OpenAIAnswer:
    """Formats one answer; remembers the part of each choice that was sent already."""

    shape: AnswerShape
    model: str
    copies: int
    has_usage: bool
    has_usage_so_far: bool = False
    echoes: Sequence[Echo] = ()
    _name: str = field(init=False, default_factory=lambda: uuid.uuid4().hex)
    _created: int = field(init=False, default_factory=lambda: int(time.time()))
    _choices: dict[int, Choice] = field(init=False, default_factory=dict)

    def format_whole(self, item: EngineAnswer, generation: Generation) -> Fields:
        """Return all choices and the usage."""
        choices = [self._whole_choice(at, each) for at, each in enumerate(answers_in(item))]
        fields = self._head(self.shape.whole_object, generation)
        return fields | {"choices": choices, "usage": self._usage()}

    def format_piece(self, answer: Fields, generation: Generation) -> list[Fields]:
        """Return the new part of one choice; nothing if the engine has made nothing new."""
        index = answer.get("index", 0)
        choice = self._choice(index)
        is_first = not choice.has_begun
        text, ended = choice.take_new_text(answer)
        calls = choice.take_new_calls(answer)
        if not (is_first or text or calls or ended):
            return []
        fields = self.shape.piece(text, calls, is_first)
        fields |= self._about(index, choice, answer, ended)
        usage = self._usage() if self.has_usage_so_far else None
        return [self._chunk([fields], usage, generation)]

    def format_end(self, generation: Generation) -> list[Fields]:
        """Return the usage, if the client wants it in a stream."""
        return [self._chunk([], self._usage(), generation)] if self.has_usage else []

    def format_error(self, error: HotReloadError) -> Fields:
        """Return the error that OpenAI's client raises in place of the next piece."""
        return {"error": openai_fields(error)}

    def _choice(self, index: int) -> Choice:
        echo = self.echoes[index // self.copies] if self.echoes else None
        return self._choices.setdefault(index, Choice(echo))

    def _chunk(self, choices: list[Fields], usage: Any, generation: Generation) -> Fields:
        fields = self._head(self.shape.piece_object, generation) | {"choices": choices}
        return fields | ({"usage": usage} if self.has_usage or usage else {})

    def _head(self, name: str, generation: Generation) -> Fields:
        return {
            "id": f"{self.shape.prefix}-{self._name}",
            "object": name,
            "created": self._created,
            "model": self.model,
            "system_fingerprint": generation.fingerprint,
            "hotreload": generation.stamp,
        }

    def _usage(self) -> UsageFields:
        """Return the usage; a prompt counts once, however many answers it has."""
        used = {index: choice.usage for index, choice in self._choices.items()}
        prompts = [one for index, one in used.items() if index % self.copies == 0]
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
        text, ended = choice.take_new_text(answer)
        fields = self.shape.whole(text, choice.take_new_calls(answer))
        return fields | self._about(index, choice, answer, ended)

    def _about(self, index: int, choice: Choice, answer: Fields, ended: Fields | None) -> Fields:
        fields: Fields = {"index": index, "finish_reason": choice.reason(ended)}
        if ended and ended["type"] == "abort":  # OpenAI has no such reason; others would be wrong
            fields["stop_reason"] = ended.get("message")
        return fields | {"logprobs": self.shape.logprobs(choice.take_new_logprobs(answer))}
