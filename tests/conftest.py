"""For all tests: see `needs`."""

from tests.needs import pytest_runtest_makereport

__all__ = ["pytest_runtest_makereport"]
