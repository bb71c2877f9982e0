"""A run leaves a record of what ran out of time, what is a fault, and how long each file took."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests import conftest
from tests.record import VARIABLE, is_for_want_of_time
from tests.waiting import look_until

ROOT = Path(__file__).parents[2]


def by_asyncio() -> None:
    async def waits() -> None:
        async with asyncio.timeout(0), asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.Event().wait())

    asyncio.run(waits())


def by_a_process() -> None:
    subprocess.run(["sleep", "9"], timeout=0.01, check=True)


def by_looking() -> None:
    look_until(lambda: False, lambda: "its log", seconds=0)


def by_a_client() -> None:
    try:
        by_asyncio()
    except TimeoutError as error:
        raise httpx.ReadTimeout("no answer") from error


def by_pytest_timeout() -> None:
    pytest.fail("Timeout (>900.0s) from pytest-timeout.")


def in_a_group() -> None:
    raise ExceptionGroup("tasks", [TimeoutError(), TimeoutError()])


def by_assertion() -> None:
    assert not "two generations in one answer"


def while_a_failure_is_cleaned_up() -> None:
    try:
        by_assertion()
    finally:
        by_asyncio()


def while_a_refusal_is_cleaned_up() -> None:
    try:
        raise ValueError
    except ValueError:
        raise TimeoutError from None


def beside_another_fault_in_a_group() -> None:
    raise ExceptionGroup("tasks", [TimeoutError(), ValueError()])


def after_a_group_with_a_fault() -> None:
    try:
        beside_another_fault_in_a_group()
    finally:
        by_looking()


def in_a_circle() -> None:
    """Python closes one where an error is set as the context of one that came before it."""
    first, second = TimeoutError(), TimeoutError()
    first.__context__, second.__context__ = second, first
    raise first


def by_pytest() -> None:
    pytest.fail("Timeout of no kind")


def by_being_cancelled() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("fails", "is_so"),
    [
        (by_asyncio, True),
        (by_a_process, True),
        (by_looking, True),
        (by_a_client, True),
        (by_pytest_timeout, True),
        (in_a_group, True),
        (in_a_circle, True),
        (by_assertion, False),
        (while_a_failure_is_cleaned_up, False),
        (while_a_refusal_is_cleaned_up, False),
        (beside_another_fault_in_a_group, False),
        (after_a_group_with_a_fault, False),
        (by_pytest, False),
        (by_being_cancelled, False),
    ],
)
def test_time_is_to_blame_only_where_nothing_else_failed(
    fails: Callable[[], None], is_so: bool
) -> None:
    with pytest.raises(BaseException) as failed:  # noqa: PT011 (of whatever kind)
        fails()
    assert is_for_want_of_time(failed.value) == is_so


TESTS = """
import time, pytest

def test_good(): time.sleep(0.6)

@pytest.mark.parametrize("n", [1, 2])
def test_late(n):
    if n == 2: raise TimeoutError

def test_late_and_wrong(request):
    request.addfinalizer(lambda: 1 / 0)
    raise TimeoutError
"""


def test_the_record_is_of_all_workers(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(TESTS)
    (tmp_path / "test_y.py").write_text("def test_wrong(): assert False")
    done = run(tmp_path, "-n", "2")
    assert "3 failed, 2 passed, 1 error" in done.stdout, done.stdout
    assert (tmp_path / "record/seconds").read_text() == "1 test_x.py\n0 test_y.py\n"
    assert sorted((tmp_path / "record/failed").read_text().splitlines()) == [
        "fault test_x.py::test_late_and_wrong",
        "fault test_y.py::test_wrong",
        "time test_x.py::test_late[2]",
        "time test_x.py::test_late_and_wrong",
    ]


@pytest.mark.parametrize("arguments", [["test_none.py"], ["-k", "nothing"]])
def test_a_run_that_comes_to_no_end_says_of_nothing_that_it_failed(
    tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "test_x.py").write_text(TESTS)
    assert run(tmp_path, *arguments).returncode
    assert not (tmp_path / "record/failed").exists()


def test_what_cannot_be_imported_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(TESTS)
    (tmp_path / "test_y.py").write_text("import nothing_of_this_name")
    run(tmp_path, "--continue-on-collection-errors")
    assert "fault test_y.py\n" in (tmp_path / "record/failed").read_text()


def test_the_files_that_took_longest_come_first_and_new_ones_before_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "durations").write_text("100 test_long.py\n9 test_short.py\n0 test_quick.py\n")
    monkeypatch.setattr(conftest, "DURATIONS", tmp_path / "durations")
    ids = ("quick.py::a", "short.py::a", "new.py::b[x::y]", "long.py::b", "long.py::a")
    items: list[Any] = [SimpleNamespace(nodeid=f"test_{each}") for each in ids]
    conftest.pytest_collection_modifyitems(items)
    assert [item.nodeid.removeprefix("test_") for item in items] == [
        *("new.py::b[x::y]", "long.py::b", "long.py::a", "short.py::a", "quick.py::a")
    ]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir=."),
            *("-p", "no:cacheprovider", "-p", "xdist.plugin", "-p", "tests.record"),
            *arguments,
        ],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            VARIABLE: str(folder / "record"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
