"""What a daemon exports, and what an expression asks for."""

import re
from collections import deque
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from hotreload.attempts import Attempt, PassedOver
from hotreload.core.ledger import Ledger
from hotreload.events import FoldersPassedOver, GenerationLive, RevisionWanted, TroubleNews
from hotreload.features.compare.differences import report_of
from hotreload.observe.metrics import Metrics
from hotreload.picture.picture import KeyFigures, Rank, Readings, Setup
from hotreload.types import Generation, Outcome, Reason, Revision
from tests.evidence import judged
from tests.observe.things import Counted, picture_of

OURS = re.compile(r"(?<![\w:])hotreload_\w+(?![\w:])")
RECORDED = re.compile(r"\w+:\w+:\w+")
STRINGS = re.compile(r'"[^"]*"')


def exported() -> set[str]:
    """The name of every series on the page of a daemon that serves."""
    families = text_string_to_metric_families(whole_page().render().decode())
    return {sample.name for family in families for sample in family.samples}


def whole_page() -> Metrics:
    """What rank 0 of two hosts exports that serves, compared, failed and passed a folder over."""
    revision, reason = Revision("id", "label"), Reason("format", "why")
    asked = report_of([], [])
    failed = judged(Attempt(revision, Outcome.REJECTED, reason, {}, 0.0, 0.0), behaviour=asked)
    picture = picture_of(
        Ledger(attempts=deque([failed])),
        setup=Setup(rank=Rank(0, 2, "leader:1")),
        readings=Readings(silences=lambda: {1: 0.5}, keys=lambda: {"evals": KeyFigures()}),
    )
    metrics = Counted(picture)
    metrics.observe(GenerationLive(Generation(1, revision, "fingerprint", 0.0, {"leaf": 1})))
    metrics.observe(RevisionWanted(revision))
    metrics.observe(TroubleNews("files_gone", "why", "what to do"))
    metrics.observe(FoldersPassedOver((PassedOver("label", reason),), {"format": 1}))
    return metrics


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
