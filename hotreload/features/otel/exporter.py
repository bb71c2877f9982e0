"""Sends spans in a thread of the SDK's; its queue is bounded, and what does not fit is dropped."""

import asyncio
import logging
import os
import threading
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

from hotreload import __version__
from hotreload.features.otel.report import OtelReport

log = logging.getLogger("hotreload.otel")

LAST_SPANS_SECONDS = 2.0
"""The longest that the daemon's end waits for the last spans."""
_ASKED_SECONDS = 0.05
UNREACHED = (
    "nothing for requests: they are answered as before, without a trace; start the collector, or "
    "mend [otel] endpoint and restart"
)


class Exporter:
    """The way of spans to the collector."""

    def __init__(self, endpoint: str, counts: OtelReport) -> None:
        # The environment may say more: OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES,
        # OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER ...
        name = os.environ.get("OTEL_SERVICE_NAME", "hotreload")
        resource = Resource.create({"service.name": name, "service.version": __version__})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces")
        self._provider.add_span_processor(BatchSpanProcessor(_Watched(exporter, counts)))
        self.tracer = self._provider.get_tracer("hotreload", __version__)

    async def run(self) -> None:
        """Wait until the daemon ends, and send the rest; a dead collector is left behind."""
        try:
            await asyncio.Event().wait()
        finally:
            sending = threading.Thread(target=self._provider.shutdown, daemon=True)
            sending.start()
            now = asyncio.get_running_loop().time
            until = now() + LAST_SPANS_SECONDS
            while sending.is_alive() and now() < until:  # noqa: ASYNC110  # no event of a thread
                await asyncio.sleep(_ASKED_SECONDS)


class _Watched:
    """Counts what the SDK's exporter sends; logs once that the collector takes nothing.

    The SDK would log a line or more for each try.
    """

    def __init__(self, exporter: OTLPSpanExporter, counts: OtelReport) -> None:
        self._exporter = exporter
        self._counts = counts
        self._reasons = _Reasons()
        self._is_reached = True

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._reasons.found.clear()
        try:
            result = self._exporter.export(spans)
        except Exception as error:  # older SDKs raise, as where no answer comes in time
            self._reasons.found.append(f"{type(error).__name__}: {error}")
            result = SpanExportResult.FAILURE
        is_reached = result is SpanExportResult.SUCCESS
        if is_reached:
            self._counts.sent += len(spans)
        else:
            self._counts.lost += len(spans)
        if is_reached and not self._is_reached:
            log.info("otel.reached")
        elif self._is_reached and not is_reached:
            why = "; ".join(self._reasons.found[:1])
            log.warning("otel.unreached", extra={"why": why, "todo": UNREACHED})
        self._is_reached = is_reached
        return result

    def shutdown(self) -> None:
        self._exporter.shutdown()


class _Reasons(logging.Handler):
    """Takes the SDK's own lines off the log, and keeps them as reasons."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        sdk = logging.getLogger("opentelemetry")
        sdk.handlers, sdk.propagate = [self], False

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())
