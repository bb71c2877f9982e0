"""A span for each attempt to make a checkpoint live, and one in it for each of its phases."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from logging import WARNING
from typing import Any

from opentelemetry.trace import Context, Status, StatusCode, Tracer, set_span_in_context

from hotreload.events import AttemptFinished, DryRunFinished, Event, PhaseEntered
from hotreload.types import Phase

ATTEMPT = "hotreload.attempt"


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
            case AttemptFinished() | DryRunFinished():
                self._trace(event)
                self._spent = []

    def _trace(self, event: AttemptFinished | DryRunFinished) -> None:
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


def _facts_of(event: AttemptFinished | DryRunFinished) -> Mapping[str, Any]:
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
