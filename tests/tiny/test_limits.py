"""The page tells of each wrong conversion which limit catches it: as hotreload's report says."""

import tomllib
from dataclasses import asdict

import pytest

from tests.docs.pages import blocks
from tests.tiny.limits import GOOD_STEPS, KINDS, LIMITS, PAGE, damaged_row, good_row, read


def test_the_page_has_each_damage_and_what_its_limits_say_of_the_figures() -> None:
    rows = read()
    good, damaged = rows[: len(GOOD_STEPS)], rows[len(GOOD_STEPS) :]
    assert sorted(row.kind for row, _ in damaged) == sorted(KINDS)
    assert [names for _, names in good] == [[]] * len(GOOD_STEPS)
    assert {row.kind: names for row, names in rows} == {row.kind: row.caught_by for row, _ in rows}


def test_the_limits_on_the_page_are_those_of_the_table() -> None:
    (file,) = (tomllib.loads(each) for each in blocks("toml", PAGE.read_text()))
    given = {name: each for name, each in asdict(LIMITS["qwen3"]).items() if each is not None}
    assert file["compare"]["limits"] == given


def test_the_page_names_those_that_no_limit_catches() -> None:
    missed = {row.kind for row, names in read()[len(GOOD_STEPS) :] if not names}
    (line,) = (each for each in PAGE.read_text().splitlines() if "no limit catches" in each)
    assert {kind for kind in KINDS if f"`{kind}`" in line} == missed


@pytest.mark.at_night
def test_the_report_says_of_each_damage_what_the_page_says() -> None:
    """Figures move a little with the machine that trains, and no good step is refused."""
    measured = [*map(good_row, GOOD_STEPS), *(damaged_row(row.kind) for row, _ in read()[6:])]
    for found, (row, names) in zip(measured, read(), strict=True):
        assert found.kind == row.kind
        assert found.agreement == pytest.approx(row.agreement, abs=0.1), found.kind
        assert found[2:] == pytest.approx(row[2:], rel=0.3), found.kind
        assert bool(found.caught_by) == bool(names), found.kind
