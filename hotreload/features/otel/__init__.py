"""Sends traces of requests and of attempts to an OpenTelemetry collector."""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Self, override

from hotreload.errors import ConfigError
from hotreload.feature import Feature, FeatureParts, Given
from hotreload.setting import HttpUrl, SettingsOfFeature, setting

EXPORTER = "opentelemetry.exporter.otlp.proto.http"


@dataclass(frozen=True, slots=True)
class OtelSettings(SettingsOfFeature):
    """Traces of requests and attempts, sent by OTLP."""

    endpoint: HttpUrl | None = setting(
        None,
        "URL of an OTLP/HTTP collector; /v1/traces is added. Unset, nothing is traced. Needs "
        "`pip install hotreload[otel]`.",
        example="http://127.0.0.1:4318",
    )

    @override
    def with_files(self) -> Self:
        if self.endpoint is not None and not _is_installed():
            words = "needs `pip install 'hotreload[otel]'`: the exporter is not installed"
            raise ConfigError(f"[otel] endpoint: {words}")
        return self


def _is_installed() -> bool:
    try:
        return find_spec(EXPORTER) is not None
    except ModuleNotFoundError:  # of a package above it
        return False


def _begin(given: Given) -> FeatureParts:
    from hotreload.features.otel.report import OtelReport

    settings, report = given.settings(), OtelReport()
    endpoint = settings.of(OtelSettings).endpoint
    if endpoint is None:
        return FeatureParts(report=report)
    from hotreload.features.otel.exporter import Exporter
    from hotreload.features.otel.spans import AttemptSpans, RequestSpans

    exporter = Exporter(endpoint, report)
    return FeatureParts(
        listeners=[RequestSpans(exporter.tracer, settings.model_name)],
        observe=AttemptSpans(exporter.tracer).observe,
        report=report,
        tasks={"send what is traced at the end": exporter.run},
    )


OTEL_FEATURE = Feature(name="otel", settings=OtelSettings, begin=_begin)
