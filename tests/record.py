"""What came of the tests, for `.ci/judge` and for the order of the next run.

Where $HOTRELOAD_TEST_RECORD names a folder, two files are left there: `failed`, with a line for
each failure (`time ID` for a test that ran out of time, `fault ID` for any other), and `seconds`,
with a line for each file of tests (`SECONDS PATH`), the longest first.
"""

import asyncio
import os
import subprocess
from collections import defaultdict
from collections.abc import Generator, Iterator
from pathlib import Path

import httpcore
import httpx
import pytest

VARIABLE = "HOTRELOAD_TEST_RECORD"
WANT_OF_TIME = ("failed for want of", "time")

TIMEOUTS = (
    TimeoutError,
    subprocess.TimeoutExpired,
    httpx.TimeoutException,
    httpcore.TimeoutException,
)


def is_for_want_of_time(error: BaseException) -> bool:
    """Tell whether nothing but time ran out: a wait may have hidden a failed assertion."""
    behind = list(_behind(error))
    return all(_tells_of_time(each) for each in behind) and any(
        not isinstance(each, asyncio.CancelledError) for each in behind
    )


def _behind(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and those before it, each once; the members of a group, and not the group."""
    seen, left = set[int](), [error]
    while left:
        one = left.pop()
        if id(one) in seen:  # who raises an old error again may close a circle
            continue
        seen.add(id(one))
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions
        else:
            yield one
        left += [before for before in (one.__context__, one.__cause__) if before is not None]


def _tells_of_time(error: BaseException) -> bool:
    if isinstance(error, pytest.fail.Exception):
        return str(error.msg).startswith("Timeout (>")  # pytest-timeout
    return isinstance(error, (*TIMEOUTS, asyncio.CancelledError))


class Record:
    """Kept by the process that runs pytest, of all workers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._failed: list[str] = []
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed.append(f"fault {report.nodeid}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration
        if report.failed:
            why = "time" if WANT_OF_TIME in map(tuple, report.user_properties) else "fault"
            self._failed.append(f"{why} {report.nodeid}")

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        longest = sorted(self._seconds.items(), key=lambda each: (-round(each[1]), each[0]))
        self._write("seconds", [f"{seconds:.0f} {file}" for file, seconds in longest])
        if exitstatus == pytest.ExitCode.TESTS_FAILED:
            self._write("failed", self._failed)

    def _write(self, name: str, lines: list[str]) -> None:
        (self._folder / name).write_text("".join(f"{line}\n" for line in lines))


def pytest_configure(config: pytest.Config) -> None:
    """Keep a record where one is wanted, and not in each worker."""
    if (folder := os.environ.get(VARIABLE)) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Record(Path(folder)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note of a failure whether time alone is to blame, while the error is at hand."""
    report = yield
    if report.failed and call.excinfo and is_for_want_of_time(call.excinfo.value):
        report.user_properties.append(WANT_OF_TIME)
    return report
