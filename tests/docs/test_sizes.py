"""No page of docs/ grows into a book again."""

import pytest

from tests.docs.pages import PAGES

LIMITS = {
    "docs/api.md": 18_000,
    "docs/architecture.md": 9_100,
    "docs/checkpoints.md": 8_000,
    "docs/guarantees.md": 8_000,
    "docs/configuration.md": 20_500,
    "docs/how-it-works.md": 11_000,
    "docs/judge.md": 12_000,
    "docs/operate.md": 13_300,
    "docs/performance.md": 7_000,
    "docs/reference.md": 36_000,
    "docs/several.md": 8_000,
    "docs/start.md": 11_000,
    "docs/train.md": 13_000,
    "docs/words.md": 4_500,
}
"""Bytes of each page that was written anew."""
READ_THROUGH = 16_200
"""Bytes of a page that one reads from its head to its end: some ten minutes."""
OTHERS = {}


@pytest.mark.parametrize("page", LIMITS)
def test_a_page_keeps_within_its_bytes(page: str) -> None:
    assert len(PAGES[page].encode()) <= LIMITS[page], "say it in fewer words"


@pytest.mark.parametrize("page", [each for each in PAGES if each not in {*LIMITS, "README.md"}])
def test_a_page_is_read_in_one_sitting(page: str) -> None:
    assert len(PAGES[page].encode()) <= OTHERS.get(page, READ_THROUGH), (
        "give a part of it its own page"
    )
