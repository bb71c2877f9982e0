"""For all tests: in which order files run, what may not be skipped, what is recorded of each."""

import math
from pathlib import Path

import pytest
from hypothesis import settings

from tests.golden.compare import OPTION, Golden

pytest_plugins = ["tests.aftermath", "tests.garbage", "tests.needs", "tests.record"]

DURATIONS = Path(__file__).with_name("durations.txt")
settings.register_profile("any machine", deadline=None)  # a busy one takes a second for an example
settings.load_profile("any machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let golden files be written anew."""
    words = "write the golden files anew (tests/golden/files/): look at the diff, it is signed"
    parser.addoption(OPTION, action="store_true", help=words)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the files that take longest come first; one that has no record counts as long.

    A long file that begins last runs alone, while the other process has nothing left to do.
    """
    records = [line.split() for line in DURATIONS.read_text().splitlines()]
    took = {file: int(seconds) for seconds, file in records}
    items.sort(key=lambda item: -took.get(item.nodeid.partition("::")[0], math.inf))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Holds what a test tells against the golden files, or writes them anew."""
    tests = str(request.path.relative_to(request.config.rootpath))
    return Golden(tests, bool(request.config.getoption(OPTION)))
