"""For all tests: in which order files run, what may not be skipped, what is recorded of each."""

import math
from pathlib import Path

import pytest

pytest_plugins = ["tests.aftermath", "tests.needs", "tests.record"]

DURATIONS = Path(__file__).with_name("durations.txt")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the files that take longest come first; one that has no record counts as long.

    A long file that begins last runs alone, while the other process has nothing left to do.
    """
    records = [line.split() for line in DURATIONS.read_text().splitlines()]
    took = {file: int(seconds) for seconds, file in records}
    items.sort(key=lambda item: -took.get(item.nodeid.partition("::")[0], math.inf))
