"""Spans of requests and of attempts, as a collector gets them by OTLP."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from hotreload.errors import AnswerNonfinite, ConfigError
from hotreload.events import PhaseEntered
from hotreload.features import FEATURES, otel
from hotreload.features.otel import exporter
from hotreload.features.otel.report import OtelReport
from hotreload.features.otel.spans import AttemptSpans
from hotreload.life.acceptance import read_settings
from hotreload.types import Outcome, Phase, Revision
from tests.features.receiver import Receiver
from tests.integration.running import Running, post
from tests.server.world import FIRST, World, serve
from tests.waiting import turn_until
from tests.words.engine import starting_engines_of_words

TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
NAMED = {"traceparent": f"00-{TRACE}-{CALLER}-01", "X-Request-Id": "mine"}
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")  # milliseconds
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
    with Receiver().listening() as receiver:
        yield receiver


@asynccontextmanager
async def traced(folder: Path, collector: Receiver) -> AsyncIterator[World]:
    """A server whose last spans are sent when the block ends."""
    async with serve(folder, sets=[f"otel.endpoint={collector.url}"]) as world:
        [send] = [run for name, run in world.features.tasks.items() if "traced" in name]
        sending = asyncio.create_task(send())
        await asyncio.sleep(0)
        try:
            yield world
        finally:
            sending.cancel()
            await asyncio.wait({sending})


def spans_of(collector: Receiver) -> list[Span]:
    assert {path for path, _, _ in collector.came} <= {"/v1/traces"}
    exports = [ExportTraceServiceRequest.FromString(body) for _, _, body in collector.came]
    return [
        span
        for export in exports
        for of_resource in export.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]


def facts_of(span: Span) -> dict[str, Any]:
    return {each.key: _value(each.value) for each in span.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


async def test_a_request_is_a_span_by_the_conventions(tmp_path: Path, collector: Receiver) -> None:
    async with traced(tmp_path, collector) as world, world.client() as client:
        for stream in (False, True):
            asked = {**CHAT, "stream": stream, "n": 2}
            await client.post("/v1/chat/completions", json=asked, headers=NAMED)
        await client.post("/generate", json={"text": ["a", "b"]})
        await world.until(lambda: len(world.metrics.finished) == 3)
    whole, stream, batch = sorted(spans_of(collector), key=lambda span: span.start_time_unix_nano)
    firsts = [facts_of(span).get("gen_ai.response.time_to_first_chunk") for span in (whole, stream)]
    assert firsts[0] is None
    assert firsts[1] is not None
    for span in (whole, stream):
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, CALLER)
        assert (span.name, span.kind) == ("chat model", Span.SPAN_KIND_SERVER)
        assert [each.name for each in span.events] == ["hotreload.admitted"]
        admitted = span.events[0].time_unix_nano
        assert span.start_time_unix_nano <= admitted <= span.end_time_unix_nano
        facts = facts_of(span)
        facts.pop("gen_ai.response.time_to_first_chunk", None)
        assert facts == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "hotreload",
            "gen_ai.request.model": "model",
            "gen_ai.response.model": "model",
            "gen_ai.usage.input_tokens": 7,
            "gen_ai.usage.output_tokens": 8,
            "gen_ai.response.finish_reasons": ["stop", "stop"],
            "url.path": "/v1/chat/completions",
            "hotreload.request_id": "mine",
            "hotreload.generation": 1,
            "hotreload.weight_version": "1",
            "hotreload.fingerprint": FIRST.fingerprint,
            "hotreload.revision": FIRST.revision.id,
        }
    assert not batch.parent_span_id
    assert batch.name == "text_completion model"
    usage = [facts_of(batch)[f"gen_ai.usage.{which}_tokens"] for which in ("input", "output")]
    assert usage == [14, 8]


async def test_what_ends_a_request_is_in_its_span(tmp_path: Path, collector: Receiver) -> None:
    async with traced(tmp_path, collector) as world, world.client() as client:
        world.engine.breaks_after = (2, AnswerNonfinite("no numbers"))
        await client.post("/generate", json={"text": "a", "stream": True})
        await world.until(lambda: len(world.metrics.finished) == 1)
    [span] = spans_of(collector)
    assert span.status.code == Status.STATUS_CODE_ERROR
    assert facts_of(span)["error.type"] == AnswerNonfinite.code


async def test_a_trace_that_its_caller_does_not_keep_has_no_span_of_ours(
    tmp_path: Path, collector: Receiver
) -> None:
    async with traced(tmp_path, collector) as world, world.client() as client:
        unkept = {"traceparent": f"00-{TRACE}-{CALLER}-00"}
        assert (await client.post("/generate", json={"text": "a"}, headers=unkept)).is_success
    assert spans_of(collector) == []


async def test_a_daemon_traces_its_attempts_and_sends_the_last_spans_when_it_stops(
    tmp_path: Path, collector: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "60000")
    running = Running(tmp_path, f"otel.endpoint={collector.url}")
    running.drop(1)
    with starting_engines_of_words():
        async with running.serving():
            assert (await running.attempted(running.drop(2))).outcome is Outcome.LIVE
            refused = await running.attempted(running.drop(3, "truncated"))
            assert refused.outcome is Outcome.REJECTED
            await running.ask()
            assert (await post(running, "rollback")).is_success
    assert running.exit_code == 0
    spans = spans_of(collector)
    attempts = [span for span in spans if span.name == "hotreload.attempt"]
    _, live, rejected, back = map(facts_of, attempts)
    assert (live["hotreload.label"], live["hotreload.outcome"]) == ("step_2", "live")
    assert (live["hotreload.generation"], live["hotreload.weight_version"]) == (2, "2")
    assert rejected["hotreload.outcome"] == "rejected"
    assert refused.reason is not None
    assert rejected["hotreload.reason"] == refused.reason.code
    assert attempts[2].status.code == Status.STATUS_CODE_ERROR
    assert attempts[2].status.message == refused.reason.message
    assert back["hotreload.ordered_by"] == "rollback"
    phases = [span for span in spans if span.parent_span_id == attempts[1].span_id]
    assert {f"hotreload.attempt.{each}" for each in ("fetching", "validating", "staging")} <= {
        each.name for each in phases
    }
    for each in phases:
        assert each.trace_id == attempts[1].trace_id
        assert attempts[1].start_time_unix_nano <= each.start_time_unix_nano
        assert each.start_time_unix_nano <= each.end_time_unix_nano
        assert each.end_time_unix_nano <= attempts[1].end_time_unix_nano
    [asked] = [span for span in spans if span.name.startswith("text_completion")]
    assert facts_of(asked)["hotreload.generation"] == 2


def test_an_attempt_that_was_given_up_leaves_no_phase_to_the_next() -> None:
    spans = AttemptSpans(None)
    for phase in (Phase.FETCHING, None, Phase.STAGING):
        spans.observe(PhaseEntered(Revision("a"), phase))
    assert [each.phase for each in spans._spent] == [Phase.STAGING]


async def test_a_dead_collector_is_in_no_requests_way_and_is_logged_once(
    tmp_path: Path, collector: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    collector.status = 400
    async with traced(tmp_path, collector) as world, world.client() as client:
        [report] = [each for each in world.features.reports if isinstance(each, OtelReport)]

        def counted() -> dict[str, float]:
            [family] = report.families()
            return {result: count for (result,), count in family.series}

        async def ask_until(lost: int) -> None:
            assert (await client.post("/generate", json={"text": "a"})).is_success
            await turn_until(lambda: counted()["lost"] == lost)

        await ask_until(1)
        await ask_until(2)
        collector.status = 200
        await ask_until(2)
        await turn_until(lambda: counted() == {"sent": 1, "lost": 2})
    lines = [each for each in caplog.records if "otel" in each.name or "telemetry" in each.name]
    assert [each.message for each in lines] == ["otel.unreached", "otel.reached"]
    assert "400" in vars(lines[0])["why"]


def test_an_exporter_that_raises_loses_spans_and_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Raises:
        def export(self, spans: object) -> Any:
            raise TimeoutError("no answer")

    counts, sending = OtelReport(), Raises()
    watched = exporter._Watched(sending, counts)
    watched.export([])
    (told,) = caplog.records
    assert (told.msg, told.__dict__["why"]) == ("otel.unreached", "TimeoutError: no answer")


async def test_a_collector_that_hangs_does_not_hold_up_the_end(
    tmp_path: Path, collector: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "LAST_SPANS_SECONDS", 0.1)
    collector.may_answer.clear()
    async with traced(tmp_path, collector) as world, world.client() as client:
        assert (await client.post("/generate", json={"text": "a"})).is_success
    collector.may_answer.set()


def test_without_an_endpoint_nothing_of_opentelemetry_is_imported() -> None:
    """No other room imports it: tests/test_layers.py."""
    program = (
        "import sys\n"
        "from hotreload.features import FEATURES\n"
        "from tests.features.given import parts_of\n"
        "parts = [parts_of(each) for each in FEATURES if each.name == 'otel']\n"
        "assert not parts[0].listeners and not parts[0].tasks\n"
        "sys.exit(any('opentelemetry' in name for name in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("url", ["127.0.0.1:4318", "ftp://x", "http://me:secret@x", "http://a b"])
def test_an_endpoint_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r"\[?otel\]?.endpoint") as refused:
        read_settings(None, [f"otel.endpoint={url}"], {}, FEATURES)
    assert "secret" not in str(refused.value)


def test_an_exporter_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otel, "EXPORTER", "no_such_package.exporter")
    with pytest.raises(ConfigError, match="needs `pip install 'hotreload\\[otel\\]'`"):
        read_settings(None, ["otel.endpoint=http://x:4318"], {}, FEATURES)
