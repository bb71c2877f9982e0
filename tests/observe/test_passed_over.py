"""Folders that are passed over: told once in the log, counted in a metric, named in the status."""

from hotreload.attempts import PassedOver
from hotreload.cli.client.texts import status_text
from hotreload.errors import PASSED_OVER
from hotreload.events import FoldersPassedOver
from hotreload.observe.log import NewlyPassedOver
from hotreload.types import Reason
from tests.cli.test_top_frame import shown as top
from tests.observe.test_log import logged
from tests.observe.test_metrics import after as measured
from tests.observe.test_metrics import value
from tests.observe.test_named import said
from tests.observe.test_status import BOOTED, after


def folder(label: str, code: str = "format", words: str = "holds a.bin") -> PassedOver:
    return PassedOver(label, Reason(code, f"{label} {words}"))


ONE = FoldersPassedOver((folder("step_9"),), {"format": 1})
MANY = FoldersPassedOver((folder("step_9"), folder("step_8", "io")), {"format": 40, "io": 1})
NONE = FoldersPassedOver((), {})


def test_a_folder_is_told_once_for_each_reason() -> None:
    again = FoldersPassedOver((folder("step_9", words="in other words"),), {"format": 1})
    other = FoldersPassedOver((folder("step_9", "io", "cannot be read"),), {"io": 1})
    told = logged(ONE, NONE, ONE, again, MANY, other)
    assert [(line["label"], line["code"]) for line in told] == [
        ("step_9", "format"),
        ("step_8", "io"),
        ("step_9", "io"),
    ]
    assert {(line["event"], line["level"]) for line in told} == {("source.passed_over", "warning")}
    assert told[0]["reason"] == "step_9 holds a.bin"


def test_what_was_told_is_remembered_within_bounds() -> None:
    newly = NewlyPassedOver()
    for step in range(3000):
        assert len(list(newly.of(FoldersPassedOver((folder(f"step_{step}"),), {})))) == 1
    assert len(newly._told) == 1000
    assert list(newly.of(FoldersPassedOver((folder("step_2999"),), {}))) == []


def test_each_reason_is_a_gauge_from_the_start_and_falls_again() -> None:
    for reason in PASSED_OVER:
        assert value(measured(), "source_passed_over", reason=reason) == 0
    assert value(measured(ONE, MANY), "source_passed_over", reason="format") == 40
    assert value(measured(MANY, NONE), "source_passed_over", reason="format") == 0


def test_the_newest_folder_of_each_reason_is_named_to_prometheus() -> None:
    two = FoldersPassedOver((folder("step_9"), folder("step_8"), folder("step_7", "io")), {})
    assert said(measured(two), "source_passed_over_info") == [
        {"label": "step_7", "reason": "io", "message": "step_7 holds a.bin"},
        {"label": "step_9", "reason": "format", "message": "step_9 holds a.bin"},
    ]
    assert said(measured(two, NONE), "source_passed_over_info") == []


def test_the_status_names_them_and_counts_the_others() -> None:
    snapshot = after(*BOOTED, MANY).snapshot()
    assert snapshot["passed_over_total"] == 41
    assert snapshot["passed_over"] == [
        {"label": "step_9", "code": "format", "reason": "step_9 holds a.bin"},
        {"label": "step_8", "code": "io", "reason": "step_8 holds a.bin"},
    ]
    assert after(*BOOTED, MANY, NONE).snapshot()["passed_over"] == []


def test_people_read_them_in_status_and_top() -> None:
    snapshot = after(*BOOTED, MANY).snapshot()
    lines = status_text(snapshot).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("passed over"))
    assert lines[at].endswith("  step_9 holds a.bin")
    assert [line.strip() for line in lines[at + 1 : at + 3]] == [
        "step_8 holds a.bin",
        "and 39 more",
    ]
    told = "SourcePassedOver: step_9 holds a.bin; and 40 more:"
    assert any(line.startswith(told) for line in top(*BOOTED, MANY))


def test_when_there_are_none_nothing_is_said() -> None:
    snapshot = after(*BOOTED, ONE, NONE).snapshot()
    assert "passed over" not in status_text(snapshot)
    assert not any("SourcePassedOver" in line for line in top(*BOOTED, ONE, NONE))
