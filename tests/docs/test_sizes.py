"""No page of docs/ grows into a book again."""

import pytest

from tests.docs.pages import PAGES, ROOT

LIMITS = {
    "CHANGELOG.md": 6_000,
    "docs/api.md": 20_000,
    "docs/architecture.md": 8_000,
    "docs/checkpoints.md": 8_000,
    "docs/configuration.md": 22_000,
    "docs/eleven-ways.md": 5_000,
    "docs/guarantees.md": 4_000,
    "docs/how-it-works.md": 8_000,
    "docs/judge.md": 11_000,
    "docs/operate.md": 12_500,
    "docs/performance.md": 7_000,
    "docs/reference.md": 36_000,
    "docs/several.md": 8_000,
    "docs/start.md": 12_000,
    "docs/train.md": 13_000,
    "docs/words.md": 4_500,
}
"""Bytes of each page, beside the README."""
MOST_BYTES = 170_000
MOST_PAGES = 15


@pytest.mark.parametrize("page", LIMITS)
def test_a_page_keeps_within_its_bytes(page: str) -> None:
    assert size_of(page) <= LIMITS[page], "say it in fewer words"


def test_the_pages_are_few_and_short() -> None:
    assert PAGES.keys() | {"CHANGELOG.md"} == {*LIMITS, "README.md"}
    assert len(LIMITS.keys() - {"CHANGELOG.md"}) <= MOST_PAGES
    assert sum(map(size_of, LIMITS)) <= MOST_BYTES


def size_of(page: str) -> int:
    return (ROOT / page).stat().st_size
