"""The spans of requests, and of attempts to make a checkpoint live.

An admitted request has one, by OpenTelemetry's GenAI conventions; an attempt has one, and one in it
for each of its phases.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from logging import WARNING
from typing import Any

from opentelemetry.trace import (
    Context,
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from hotreload.core.way_in.admission import AnswerCallbacks, LetIn
from hotreload.errors import HotReloadError
from hotreload.events import AttemptEnd, Event, PhaseEntered
from hotreload.types import Phase

CHAT_ROUTES = frozenset(("/v1/chat/completions", "/v1/responses"))
"""Routes whose operation is called chat; that of the others is text_completion."""
PROVIDER = "hotreload"
ATTEMPT = "hotreload.attempt"


class RequestSpans:
    """Listens to requests."""

    def __init__(self, tracer: Tracer, model: str) -> None:
        self._tracer = tracer
        self._model = model

    def listen(self, request: LetIn) -> AbstractContextManager[AnswerCallbacks] | None:
        """Trace one request from the time it came to its last token."""
        span = self._begin(request)
        return _trace(request, span) if span.is_recording() else None

    def _begin(self, request: LetIn) -> Span:
        origin, live = request.origin, request.generation
        waited = asyncio.get_running_loop().time() - request.came_at
        operation = "chat" if origin.route in CHAT_ROUTES else "text_completion"
        span = self._tracer.start_span(
            f"{operation} {self._model}",
            context=_context_of(origin.trace),
            kind=SpanKind.SERVER,
            start_time=time.time_ns() - int(waited * 1e9),
            attributes={
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": PROVIDER,
                "gen_ai.request.model": self._model,
                "gen_ai.response.model": self._model,
                "url.path": origin.route,
                "hotreload.request_id": origin.id,
                "hotreload.generation": live.number,
                "hotreload.weight_version": live.weight_version,
                "hotreload.fingerprint": live.fingerprint,
                "hotreload.revision": live.revision.id,
            },
        )
        span.add_event("hotreload.admitted")
        return span


@contextmanager
def _trace(request: LetIn, span: Span) -> Iterator[AnswerCallbacks]:
    """Trace a request while the block runs."""
    usage = _Usage(request)
    try:
        yield AnswerCallbacks(usage.end, usage.grow)
    except BaseException as error:
        span.set_attribute("error.type", _type_of(error))
        span.set_status(Status(StatusCode.ERROR))
        raise
    finally:
        span.set_attributes(usage.attributes())
        span.end()


class _Usage:
    """The tokens of a request, when the first came, and how its answers ended."""

    def __init__(self, request: LetIn) -> None:
        self._request = request
        self._first_after: float | None = None
        self._read: dict[int, int] = {}
        self._made = 0
        self._ends: list[str] = []

    def grow(self, index: int, new: int, at: float) -> None:
        """Note the time of the first token."""
        if self._first_after is None:
            self._first_after = at - self._request.came_at

    def end(self, index: int, answer: Mapping[str, Any]) -> None:
        """Take in an answer that has ended."""
        meta = answer["meta_info"]
        self._read[index // self._request.copies] = meta.get("prompt_tokens", 0)
        self._made += meta.get("completion_tokens", 0)
        self._ends.append(str(meta["finish_reason"].get("type")))

    def attributes(self) -> Mapping[str, Any]:
        """Return the usage; empty where no answer has begun."""
        first = self._first_after
        if first is None and not self._ends:
            return {}
        of_stream = {} if first is None else {"gen_ai.response.time_to_first_chunk": first}
        return {
            **(of_stream if self._request.streams else {}),
            "gen_ai.usage.input_tokens": sum(self._read.values()),
            "gen_ai.usage.output_tokens": self._made,
            "gen_ai.response.finish_reasons": self._ends,
        }


def _context_of(trace: str) -> Context:
    return TraceContextTextMapPropagator().extract({"traceparent": trace}, Context())


def _type_of(error: BaseException) -> str:
    return error.code if isinstance(error, HotReloadError) else type(error).__name__


@dataclass(slots=True)
class _Spent:
    """A phase, and when it began and ended, in nanoseconds."""

    phase: Phase
    replica: int
    began: int
    ended: int = 0


class AttemptSpans:
    """Makes the spans of an attempt when it has ended."""

    def __init__(self, tracer: Tracer, now: Callable[[], int] = time.time_ns) -> None:
        self._tracer = tracer
        self._now = now
        self._spent: list[_Spent] = []
        self._is_over = True

    def observe(self, event: Event) -> None:
        """Take in a phase, or the end of the attempt; one that was given up has no span."""
        match event:
            case PhaseEntered(_, phase, replica):
                now = self._now()
                if self._is_over:
                    self._spent = []
                elif self._spent:
                    self._spent[-1].ended = now
                self._is_over = phase is None
                if phase is not None:
                    self._spent.append(_Spent(phase, replica, now))
            case AttemptEnd():
                self._trace(event)
                self._spent = []

    def _trace(self, event: AttemptEnd) -> None:
        now = self._now()
        began = self._spent[0].began if self._spent else now
        span = self._tracer.start_span(
            ATTEMPT, context=Context(), start_time=began, attributes=_facts_of(event)
        )
        within = set_span_in_context(span, Context())
        for each in self._spent:
            phase = self._tracer.start_span(
                f"{ATTEMPT}.{each.phase.value}",
                context=within,
                start_time=each.began,
                attributes={"hotreload.replica": each.replica},
            )
            phase.end(each.ended or now)
        if event.level >= WARNING:
            reason = event.attempt.reason
            span.set_status(Status(StatusCode.ERROR, reason.message if reason else None))
        span.end(now)


def _facts_of(event: AttemptEnd) -> Mapping[str, Any]:
    attempt = event.attempt
    facts = {
        "outcome": attempt.outcome.value,
        "reason": attempt.reason.code if attempt.reason else None,
        "revision": attempt.revision.id,
        "label": attempt.revision.label,
        "generation": attempt.generation,
        "weight_version": attempt.version or None,
        "ordered_by": attempt.by.verb if attempt.by else None,
        "rolled_back": attempt.rolled_back,
        "dry_run": attempt.dry_run,
        "pause_seconds": attempt.pause_seconds,
        "replica": event.replica,
    }
    return {f"hotreload.{name}": fact for name, fact in facts.items() if fact is not None}
