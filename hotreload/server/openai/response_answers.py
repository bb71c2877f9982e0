"""The engine's answers in the format of /v1/responses: whole, or as events."""

import time
import uuid
from typing import Literal, TypedDict

from hotreload.errors import HotReloadError
from hotreload.json_fields import Fields
from hotreload.server.http.problems import openai_fields
from hotreload.server.http.sse import NamedEvent
from hotreload.server.model import EngineAnswer
from hotreload.server.openai.answers import Choice
from hotreload.types import Generation, StampFields

_ENDS: dict[str, tuple[str, Fields]] = {
    "length": ("incomplete", {"incomplete_details": {"reason": "max_output_tokens"}}),
    "abort": ("failed", {}),
}
"""The status of an answer that did not end by itself, and its further fields."""


class ResponseItemFields(TypedDict):
    """A message, or the call of a function."""

    id: str
    type: Literal["message", "function_call"]


class ResponseUsageFields(TypedDict):
    """The tokens of a request and its answer."""

    input_tokens: int
    input_tokens_details: Fields
    output_tokens: int
    output_tokens_details: Fields
    total_tokens: int


class ResponseFields(TypedDict):
    """An answer of /v1/responses."""

    object: Literal["response"]
    id: str
    model: str
    created_at: int
    status: Literal["completed", "incomplete", "failed"]
    error: Fields | None
    incomplete_details: Fields | None
    metadata: Fields
    output: list[ResponseItemFields]
    usage: ResponseUsageFields
    hotreload: StampFields


class ResponseAnswer:
    """Formats one answer; remembers the part that was sent already.

    Long fields of the request (instructions, tools) are not repeated in each event.
    """

    def __init__(self, asked: Fields, model: str) -> None:
        self._asked = asked
        self._model = model
        self._choice = Choice()
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._count = 0
        self._new: list[Fields] = []
        """Events that were not sent yet."""
        self._items: list[Fields] = []
        self._open: Fields | None = None
        """The message that still grows, which is the last item."""
        self._ended: Fields = {}

    def format_whole(self, item: EngineAnswer, generation: Generation) -> Fields:
        """Return the response, built from the same events as in a stream, which are not sent."""
        assert isinstance(item, dict)
        self._take(item)
        self._close()
        return self._response(generation, is_over=True)

    def format_piece(self, answer: Fields, generation: Generation) -> list[Fields]:
        """Return the events of the new part."""
        if not self._choice.has_begun:
            self._add_event("created", response=self._response(generation))
            self._add_event("in_progress", response=self._response(generation))
        self._take(answer)
        return self._take_events()

    def format_end(self, generation: Generation) -> list[Fields]:
        """Return the end of the last item, and the whole response."""
        self._close()
        response = self._response(generation, is_over=True)
        self._add_event(response["status"], response=response)
        return self._take_events()

    def format_error(self, error: HotReloadError) -> Fields:
        """Return the error that OpenAI's client raises in place of the next event."""
        fields = openai_fields(error)
        return NamedEvent(
            type="error",
            sequence_number=self._count,
            code=fields["code"],
            message=fields["message"],
            param=fields["param"],
            error=fields,
        )

    def _take(self, answer: Fields) -> None:
        text, ended = self._choice.take_new_text(answer)
        self._ended = ended or {}
        if text:
            message = self._open or self._begin()
            message["content"][0]["text"] += text
            self._add_text_event("output_text.delta", message, delta=text, logprobs=[])
        for call in self._choice.take_new_calls(answer):
            if self._open is not None:
                self._close()
            self._call(call)

    def _begin(self) -> Fields:
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant"}
        message: Fields = {**item, "status": "in_progress", "content": [part]}
        self._items.append(message)
        self._open = message
        self._add_item_event("output_item.added", item={**message, "content": []})
        self._add_text_event("content_part.added", message, part=dict(part))
        return message

    def _close(self) -> None:
        """End the growing message; an answer without items gets an empty message."""
        if self._open is None and self._items:
            return
        message = self._open or self._begin()
        message["status"] = "completed" if self._status == "completed" else "incomplete"
        (part,) = message["content"]
        self._add_text_event("output_text.done", message, text=part["text"], logprobs=[])
        self._add_text_event("content_part.done", message, part=part)
        self._add_item_event("output_item.done", item=message)
        self._open = None

    def _call(self, call: Fields) -> None:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        head = {"id": f"fc_{uuid.uuid4().hex}", "type": "function_call", "call_id": call["id"]}
        item: Fields = {**head, "name": name, "arguments": arguments, "status": "completed"}
        self._items.append(item)
        begun = {**item, "arguments": "", "status": "in_progress"}
        self._add_item_event("output_item.added", item=begun)
        of = {"item_id": item["id"]}
        self._add_item_event("function_call_arguments.delta", **of, delta=arguments)
        done = {**of, "name": name, "arguments": arguments}
        self._add_item_event("function_call_arguments.done", **done)
        self._add_item_event("output_item.done", item=item)

    @property
    def _status(self) -> str:
        return _ENDS.get(self._ended.get("type", ""), ("completed", {}))[0]

    def _add_text_event(self, kind: str, message: Fields, **more: object) -> None:
        self._add_item_event(kind, item_id=message["id"], content_index=0, **more)

    def _add_item_event(self, kind: str, **more: object) -> None:
        self._add_event(kind, output_index=len(self._items) - 1, **more)

    def _add_event(self, kind: str, **more: object) -> None:
        event = {"type": f"response.{kind}", "sequence_number": self._count}
        self._new.append(NamedEvent(**event, **more))
        self._count += 1

    def _take_events(self) -> list[Fields]:
        said, self._new = self._new, []
        return said

    def _response(self, generation: Generation, *, is_over: bool = False) -> Fields:
        asked = self._asked
        ended: Fields = _ENDS.get(self._ended.get("type", ""), ("", {}))[1] if is_over else {}
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "model": self._model,
            "status": self._status if is_over else "in_progress",
            "error": self._error() if is_over else None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": asked.get("metadata", {}),
            "output": self._items if is_over else [],
            "parallel_tool_calls": asked.get("parallel_tool_calls", True),
            "tool_choice": "auto",
            "tools": [],
            "temperature": asked.get("temperature"),
            "top_p": asked.get("top_p"),
            "max_output_tokens": asked.get("max_output_tokens"),
            "previous_response_id": None,
            "reasoning": None,
            "store": False,
            "text": {"format": {"type": "text"}},
            "truncation": "disabled",
            "background": False,
            "usage": self._usage() if is_over else None,
            "hotreload": generation.stamp,
            **ended,
        }

    def _error(self) -> Fields | None:
        if self._status != "failed":
            return None
        return {"code": "server_error", "message": str(self._ended.get("message"))}

    def _usage(self) -> ResponseUsageFields:
        prompt, cached, made = self._choice.usage
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": made,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt + made,
        }
