"""A soak ends in its tables of faults, whatever ran after them and however it ended."""

from collections.abc import Callable, Generator

import pytest

TABLES = pytest.StashKey[list[str]]()


@pytest.fixture
def show_last(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Print this when all tests are over."""
    return pytestconfig.stash.setdefault(TABLES, []).append


@pytest.hookimpl(wrapper=True, tryfirst=True)  # the outermost: its last words are the last
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None]:
    """Print them below the failures; only pytest's own count comes after them."""
    yield
    for table in config.stash.get(TABLES, []):
        terminalreporter.section("faults injected and survived")
        terminalreporter.write_line(table)
