"""For all tests: in which order files run, and what may not be skipped (see `needs`)."""

import pytest

from tests.needs import pytest_runtest_makereport

__all__ = ["pytest_collection_modifyitems", "pytest_runtest_makereport"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the files that start engines come first.

    A long file that begins last runs alone, while the other process has nothing left to do.
    """
    long = {item.path for item in items if item.get_closest_marker("real_engine")}
    items.sort(key=lambda item: item.path not in long)
