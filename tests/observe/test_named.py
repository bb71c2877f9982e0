"""What alerts put into words: which checkpoint, and why."""

from collections import deque

from hotreload.attempts import Attempt
from hotreload.core.ledger import Ledger
from hotreload.events import GenerationLive, RevisionWanted
from hotreload.observe.metrics import Metrics
from hotreload.picture.report import LONGEST_MESSAGE, shorten
from hotreload.types import Reason
from tests.observe.test_metrics import after, families
from tests.observe.things import STEP_7, STEP_8, generation, rejected


def said(metrics: Metrics, name: str) -> list[dict[str, str]]:
    return [dict(sample.labels) for sample in families(metrics)[f"hotreload_{name}"].samples]


def failing(attempt: Attempt | None) -> Metrics:
    return after(ledger=Ledger(attempts=deque([attempt] if attempt else [])))


def test_the_wanted_revision_is_one_series_live_or_not() -> None:
    assert said(after(), "wanted_info") == []
    wanted = [RevisionWanted(STEP_7), RevisionWanted(STEP_8)]
    assert said(after(*wanted), "wanted_info") == [{"revision": STEP_8.id, "label": "step-8"}]
    live = GenerationLive(generation(4, STEP_8))
    assert said(after(*wanted, live), "wanted_info") == said(after(*wanted), "wanted_info")


def test_the_attempt_that_failed_last_is_named_with_its_reason() -> None:
    assert said(failing(None), "last_failure_info") == []
    assert said(failing(rejected()), "last_failure_info") == [
        {
            "revision": STEP_8.id,
            "label": "step-8",
            "outcome": "rejected",
            "reason": "truncated",
            "message": "model.safetensors ends early",
        }
    ]


def test_a_reason_is_one_line_of_text_however_long_and_whatever_files_it_names() -> None:
    odd = Reason("truncated", 'a\nfile "\udcff" ends\tearly')
    (told,) = said(failing(rejected(odd)), "last_failure_info")
    assert told["message"] == 'a file "\\udcff" ends early'
    assert len(shorten("x " * 500)) == LONGEST_MESSAGE
    assert shorten("x" * LONGEST_MESSAGE) == "x" * LONGEST_MESSAGE
