"""A test that fails alone is the only one that fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import gc, pytest, socket

@pytest.fixture
def wrong():
    left = socket.socket()
    assert not left

def test_guilty():
    left = socket.socket()
    assert not left

def test_innocent():
    gc.collect()

def test_guilty_at_once(wrong): pass

def test_innocent_too():
    gc.collect()
"""
RUN = ("-m", "pytest", "-q", "-c", os.devnull, "-W", "error", "-p", "no:cacheprovider")


@pytest.mark.parametrize(
    ("plugins", "told"),
    [
        (("-p", "tests.aftermath"), "1 failed, 2 passed, 1 error"),
        ((), "3 failed, 1 error"),  # else it would show nothing
    ],
)
def test_what_a_failed_test_leaves_fails_no_other(
    tmp_path: Path, plugins: tuple[str, ...], told: str
) -> None:
    (tmp_path / "test_x.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, *RUN, *plugins, "test_x.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert told in done.stdout, done.stdout
