"""The page for gateways: a few metrics under SGLang's names, of all engines together.

A gateway's scraper reads the page of each server every 50 ms and takes the first series of a name.
So each name has one series, and the page is text that is ready but for its numbers.
"""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from hotreload.core.way_in.admission import AnswerCallbacks, LetIn
from hotreload.core.way_in.entrance import Entrance
from hotreload.core.way_in.gate import Gate
from hotreload.picture.picture import ReplicaFigures
from hotreload.picture.report import FeatureReport
from hotreload.server.sglang.answers import count_requests
from hotreload.types import EngineLoad, GateState

FIRST_TIMES = (
    *(0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8),
    *(10, 20, 40, 60, 80, 100, 200, 400),
)
END_TIMES = (*FIRST_TIMES, 600, 1200, 1800, 2400)
BETWEEN_TIMES = (
    *(0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06),
    *(0.08, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8),
)
"""The buckets are SGLang's own, so that its dashboards' queries add up over both."""
RATE_SECONDS = 1.0
"""Rates are of at least so many seconds."""


class GatewayPage(FeatureReport):
    """Listens to all answers, and renders the page."""

    def __init__(
        self,
        entrance: Entrance[Any],
        *,
        model_name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entrance, self._clock = entrance, clock
        named = model_name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        self._labels = f'model_name="{named}"'
        self._prompt = self._cached = self._generated = 0
        """Counts of tokens: of prompts, of cached ones among them, and of answers."""
        self._marks = [(clock(), 0, 0, 0)] * 2
        """These counts at two earlier times."""
        self._hit_rate = 0.0
        self._first_token, self._answer, self._between = (
            _Histogram(f"sglang:{name}_seconds", words, self._labels, bounds)
            for name, words, bounds in (
                ("time_to_first_token", "Time to the first token of a stream.", FIRST_TIMES),
                ("e2e_request_latency", "Time to the end of an answer.", END_TIMES),
                ("inter_token_latency", "Time between two tokens of a stream.", BETWEEN_TIMES),
            )
        )

    def listen(self, request: LetIn) -> AbstractContextManager[AnswerCallbacks]:
        """Count the tokens and the times of one request's answers."""
        between = self._between.observe
        last: dict[int, float] = {}
        """The time of the last token of each answer."""

        def count_tokens(index: int, new: int, at: float) -> None:
            self._generated += new
            if (since := last.get(index)) is not None:
                between((at - since) / new, new)
            elif request.streams:
                self._first_token.observe(at - request.came_at)
            last[index] = at

        def count_answer(index: int, answer: Mapping[str, Any]) -> None:
            meta = answer["meta_info"]
            self._prompt += meta.get("prompt_tokens") or 0
            self._cached += meta.get("cached_tokens") or 0
            self._answer.observe(time.monotonic() - request.came_at)

        return nullcontext(AnswerCallbacks(count_answer, count_tokens))

    def page_for_gateways(self) -> str:
        """Render all that is known now; what no engine says yet is left out."""
        return "".join(self._render())

    def _render(self) -> Iterator[str]:
        readings = [_read(gate) for gate in tuple(self._entrance.gates)]
        running, waiting, used = map(sum, zip(*map(count_requests, readings), strict=True))
        yield self._gauge("num_running_reqs", "Requests that are being answered.", running)
        yield self._gauge("num_queue_reqs", "Requests that wait.", waiting)
        loads = [each.load for each in readings]
        tokens = sum(each.kv_requests + each.kv_prefixes + each.kv_free for each in loads)
        if tokens:  # else no engine has said it yet, or none can
            page = max(each.page_size for each in loads)  # one without a load yet says 1
            words = "Share of the KV pool that requests hold, from 0 to 1."
            yield self._gauge("token_usage", words, used / tokens)
            info = f',page_size="{page}",num_pages="{tokens // page}"'
            yield self._gauge("cache_config_info", "The KV pool; always 1.", 1, info)
            yield self._gauge("page_size", "Tokens in a page of the KV pool.", page)
            yield self._gauge("num_pages", "Pages of the KV pool.", tokens // page)
        yield self._counter("prompt_tokens", "Tokens of answered prompts.", self._prompt)
        yield self._counter("generation_tokens", "Generated tokens.", self._generated)
        rate, hits = self._rates()
        yield self._gauge("gen_throughput", "Generated tokens a second.", rate)
        words = "Share of the prompts' tokens that were cached."
        yield self._gauge("cache_hit_rate", words, hits)
        yield self._first_token.render()
        yield self._answer.render()
        yield self._between.render()

    def _rates(self) -> tuple[float, float]:
        """Return the tokens a second and the share of cached tokens, of the last second or two.

        Of the time since an earlier page where that is longer ago.
        """
        now = self._clock()
        if now - self._marks[1][0] >= RATE_SECONDS:
            newest = (now, self._generated, self._prompt, self._cached)
            self._marks = [self._marks[1], newest]
        began, generated, prompt, cached = self._marks[0]
        if self._prompt > prompt:
            self._hit_rate = (self._cached - cached) / (self._prompt - prompt)
        return (self._generated - generated) / max(now - began, RATE_SECONDS), self._hit_rate

    def _gauge(self, name: str, words: str, value: float, more: str = "") -> str:
        return _head(f"sglang:{name}", words, "gauge") + (
            f"sglang:{name}{{{self._labels}{more}}} {float(value)!r}\n"
        )

    def _counter(self, name: str, words: str, value: float) -> str:
        name = f"sglang:{name}_total"
        return _head(name, words, "counter") + f"{name}{{{self._labels}}} {float(value)!r}\n"


class _Histogram:
    """Counts of times by buckets; prometheus_client's takes ten times as long to render."""

    def __init__(self, name: str, words: str, labels: str, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        ends = [*(repr(float(bound)) for bound in bounds), "+Inf"]
        self._head = _head(name, words, "histogram")
        self._rows = [f'{name}_bucket{{{labels},le="{end}"}} ' for end in ends]
        self._count_row, self._sum_row = f"{name}_count{{{labels}}} ", f"{name}_sum{{{labels}}} "

    def observe(self, value: float, times: int = 1) -> None:
        """Count a time, or so many equal ones."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def render(self) -> str:
        """Return its series as text."""
        total, parts = 0, [self._head]
        for row, count in zip(self._rows, self._counts, strict=True):
            total += count
            parts.append(f"{row}{total}.0\n")
        parts.append(f"{self._count_row}{total}.0\n{self._sum_row}{self._sum!r}\n")
        return "".join(parts)


def _head(name: str, words: str, kind: str) -> str:
    return f"# HELP {name} {words}\n# TYPE {name} {kind}\n"


def _read(gate: Gate[Any]) -> ReplicaFigures:
    """Read how busy one engine is; one behind a sealed gate ends, or has ended."""
    lease = None if gate.state is GateState.SEALED else gate.lease
    load = EngineLoad() if lease is None else lease.engine.load
    return ReplicaFigures(inside=gate.inside, held=gate.held, load=load)
