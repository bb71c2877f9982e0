"""`hotreload explain`: the runbook's words about every code."""

from pathlib import Path

import pytest

from hotreload.cli import main
from hotreload.cli.client import explain
from hotreload.cli.client.explain import TABLES, entries
from hotreload.errors import PASSED_OVER
from hotreload.facts.files import find_shipped
from hotreload.types import Outcome
from tests.cli.conftest import Command
from tests.docs.pages import first_cells
from tests.docs.test_tables import codes_in_source
from tests.evidence import REASONS, TROUBLES
from tests.monitoring.rules import ALERTS

Caught = pytest.CaptureFixture[str]
EXITS = first_cells("exit codes")


def explained(code: str, caught: Caught) -> str:
    assert main(["explain", code]) == 0
    return caught.readouterr().out


@pytest.mark.parametrize(
    "code", sorted({*REASONS, *PASSED_OVER, *TROUBLES, *ALERTS, *EXITS, *Outcome})
)
def test_every_reason_trouble_alert_and_exit_code_is_explained(code: str, capsys: Caught) -> None:
    text = explained(code, capsys)
    firsts = [line for line in text.splitlines() if "(docs/" in line]
    assert code in firsts[0].partition(":")[0].split(", ")
    assert len(text.splitlines()) > len(firsts) > 0
    assert "](" not in text


def test_no_code_that_an_operator_or_a_client_can_see_is_without_an_entry() -> None:
    known = {code for entry in entries() for code in entry.codes}
    assert codes_in_source() - known == set()


def test_no_entry_shows_the_marks_of_its_page() -> None:
    words = [said for entry in entries() for _, said in entry.says]
    assert [said for said in words if "](" in said or "**" in said] == []


def test_no_entry_sends_to_the_row_above() -> None:
    """Who asks for one code sees one row."""
    assert "as above" not in {said for entry in entries() for _, said in entry.says}


def test_a_word_that_means_several_things_has_an_entry_for_each(capsys: Caught) -> None:
    text = explained("missing", capsys)
    assert "missing: Why a checkpoint was rejected (docs/" in text
    assert "missing: Folders that hotreload passes over (docs/" in text


def test_an_alert_says_what_it_means_and_what_to_do(capsys: Caught) -> None:
    lines = explained("weights_stale", capsys).splitlines()
    assert lines[0].startswith("WeightsStale: Alerts (docs/")
    assert [line.split()[0] for line in lines[1:]] == ["means", "do"]


def test_without_a_code_all_are_listed_under_their_headings(capsys: Caught) -> None:
    assert main(["explain"]) == 0
    text = capsys.readouterr().out
    assert "Troubles:\n    waits_for_files, older_answers" in text
    assert "Exit codes:\n    0, 1, 2" in text
    assert text.count(":\n") == len(TABLES) + len(["Alerts"])


def test_what_nobody_knows_is_misused_and_the_nearest_is_named(capsys: Caught) -> None:
    assert main(["explain", "nonfinit"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "did you mean nonfinite?" in said.err
    assert main(["explain", ""]) == 2


def test_it_does_not_matter_on_which_page_a_table_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Caught
) -> None:
    before = {entry.codes for entry in entries()}
    pages = tmp_path / "docs"
    pages.mkdir()
    for page in find_shipped("docs").glob("*.md"):
        first, heading, then = page.read_text().partition("### Why an attempt was put off")
        (pages / f"then-{page.name}").write_text(heading + then)
        (pages / page.name).write_text(first)
    monkeypatch.setattr(explain, "find_shipped", tmp_path.joinpath)
    entries.cache_clear()
    try:
        assert {entry.codes for entry in entries()} == before
        assert "then-reference.md)" in explained("oom", capsys)
    finally:
        entries.cache_clear()


async def test_it_needs_no_daemon(hotreload: Command) -> None:
    said = await hotreload("explain", "oom")
    assert (said.code, said.err) == (0, "")
    assert "mem_fraction_static" in said.out
