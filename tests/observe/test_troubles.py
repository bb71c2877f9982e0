"""Troubles that stand: told once, shown in the status, counted for Prometheus until they end."""

from hotreload.cli.client.texts import status_text
from hotreload.events import Event, TroubleNews
from hotreload.troubles import FILES_GONE, Trouble
from tests.cli.test_top_frame import shown as top
from tests.evidence import TROUBLES
from tests.observe.test_log import logged
from tests.observe.test_metrics import after as measured
from tests.observe.test_metrics import value
from tests.observe.test_named import said
from tests.observe.test_status import BOOTED, after

GONE = TroubleNews(FILES_GONE, "the files of generation 3 are gone", "copy them back")
OTHERS = TroubleNews(FILES_GONE, "the files of generations 2 and 3 are gone", "copy them back")
BACK = TroubleNews(FILES_GONE, None)


def test_a_trouble_is_told_when_it_begins_changes_and_ends_however_often_it_is_looked_at() -> None:
    told: list[Event] = []
    trouble = Trouble(FILES_GONE, told.append)
    for words in (None, GONE.message, GONE.message, OTHERS.message, None, None):
        trouble.set(words, "copy them back" if words else "")
    assert told == [GONE, OTHERS, BACK]


def test_the_log_says_what_to_do_and_when_it_is_over() -> None:
    began, over = logged(GONE, BACK)
    assert (began["event"], began["level"]) == ("trouble.began", "warning")
    assert (began["code"], began["message"]) == (FILES_GONE, GONE.message)
    assert began["todo"] == "copy them back"
    assert (over["event"], over["level"]) == ("trouble.over", "info")


def test_the_status_names_what_stands_and_since_when() -> None:
    status = after(*BOOTED, GONE)
    (first,) = status.snapshot()["troubles"]
    status.observe(OTHERS)
    (then,) = status.snapshot()["troubles"]
    assert then == {**first, "message": OTHERS.message}
    assert (then["code"], then["todo"]) == (FILES_GONE, "copy them back")
    status.observe(BACK)
    assert status.snapshot()["troubles"] == []


def test_a_person_reads_it_in_status_and_top() -> None:
    words = " ".join(status_text(after(*BOOTED, GONE).snapshot()).split())
    assert "trouble files_gone: the files of generation 3 are gone since" in words
    assert "to do: copy them back" in words
    first, second, third, *_ = top(*BOOTED, GONE)
    assert first.endswith("; 1 trouble: files_gone:")
    assert second == "hotreload explain files_gone"
    assert third.startswith("files_gone: the files of generation 3 are gone")


def test_each_trouble_is_a_gauge_from_the_start_and_its_words_are_a_label() -> None:
    for code in TROUBLES:
        assert value(measured(), "trouble", code=code) == 0
    assert value(measured(GONE), "trouble", code=FILES_GONE) == 1
    labels = {"code": FILES_GONE, "message": GONE.message, "todo": "copy them back"}
    assert said(measured(GONE), "trouble_info") == [labels]
    assert value(measured(GONE, BACK), "trouble", code=FILES_GONE) == 0
    assert said(measured(GONE, BACK), "trouble_info") == []
