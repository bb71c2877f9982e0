"""Sends traces of requests and of attempts to an OpenTelemetry collector."""

from typing import TYPE_CHECKING

from hotreload.feature import Feature
from hotreload.features.otel.settings import OtelSettings

if TYPE_CHECKING:
    from hotreload.parts import FeatureParts, Given


def _begin(given: "Given") -> "FeatureParts":
    from hotreload.features.otel.report import OtelReport, SpanCounts
    from hotreload.parts import FeatureParts

    settings, counts = given.settings(), SpanCounts()
    report, endpoint = OtelReport(counts), settings.of(OtelSettings).endpoint
    if endpoint is None:
        return FeatureParts(report=report)
    from hotreload.features.otel.attempt_spans import AttemptSpans
    from hotreload.features.otel.exporter import Exporter
    from hotreload.features.otel.request_spans import RequestSpans

    exporter = Exporter(endpoint, counts)
    return FeatureParts(
        listeners=[RequestSpans(exporter.tracer, settings.model_name)],
        observe=AttemptSpans(exporter.tracer).observe,
        report=report,
        tasks={"send what is traced at the end": exporter.run},
    )


OTEL_FEATURE = Feature(name="otel", settings=OtelSettings, begin=_begin)
