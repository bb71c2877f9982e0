"""What a daemon exports, and what an expression asks for."""

import re
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from hotreload.events import GenerationLive
from hotreload.observe.metrics import Metrics
from hotreload.types import Generation, Revision

OURS = re.compile(r"(?<![\w:])hotreload_\w+(?![\w:])")
RECORDED = re.compile(r"\w+:\w+:\w+")
STRINGS = re.compile(r'"[^"]*"')


def exported() -> set[str]:
    """The name of every series on the page of a daemon that serves."""
    metrics = Metrics()
    live = Generation(1, Revision("id", "label"), "fingerprint", 0.0, {"leaf": 1})
    metrics.observe(GenerationLive(live))
    families = text_string_to_metric_families(metrics.render().decode())
    return {sample.name for family in families for sample in family.samples}


def asked_for(expr: str) -> set[str]:
    """The metrics of ours that an expression names."""
    return set(OURS.findall(STRINGS.sub("", expr)))


def recorded_in(expr: str) -> set[str]:
    """The recorded series that an expression names."""
    return set(RECORDED.findall(STRINGS.sub("", expr)))


def filled_in(expr: str, variables: Mapping[str, str]) -> str:
    """The expression as Grafana sends it: with the values of its variables."""
    for name, value in variables.items():
        expr = expr.replace(name, value)
    return expr
