"""For all tests: in which order files run, and what may not be skipped (see `needs`)."""

import pytest

from tests.golden.compare import OPTION, Golden
from tests.needs import pytest_runtest_makereport

__all__ = ["pytest_collection_modifyitems", "pytest_runtest_makereport"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let golden files be written anew."""
    words = "write the golden files anew (tests/golden/files/): look at the diff, it is signed"
    parser.addoption(OPTION, action="store_true", help=words)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the files that start engines come first.

    A long file that begins last runs alone, while the other process has nothing left to do.
    """
    long = {item.path for item in items if item.get_closest_marker("real_engine")}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Holds what a test tells against the golden files, or writes them anew."""
    tests = str(request.path.relative_to(request.config.rootpath))
    return Golden(tests, bool(request.config.getoption(OPTION)))
