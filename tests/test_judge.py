"""`.ci/judge` gives what failed a second look, alone, and says so; a fault stays a fault."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

MAKEFILE = f"""WORKERS = 2
test:
\t@echo "workers: $(WORKERS)"
\t@{sys.executable} -m pytest -c /dev/null --rootdir . -q $(ARGS)
"""

GOOD = "def test_good(): pass\n"
BAD = "def test_bad(): assert False\n"
# Fails once, and only where another test of its file has run before it.
ONCE = """
from pathlib import Path

HERE = Path(__file__).with_suffix(".seen")

def test_before():
    HERE.with_suffix(".before").touch()

def test_once():
    assert HERE.with_suffix(".before").exists()
    seen = HERE.exists()
    HERE.touch()
    HERE.with_suffix(".before").unlink()
    assert seen
"""


def judge(root: Path, **files: str) -> subprocess.CompletedProcess[str]:
    script = root / ".ci/judge"
    script.parent.mkdir()
    shutil.copy(ROOT / ".ci/judge", script)
    (root / "Makefile").write_text(MAKEFILE)
    for name, text in files.items():
        (root / f"test_{name}.py").write_text(text)
    return subprocess.run([script], capture_output=True, text=True, check=False)


def test_what_passes_is_run_once(tmp_path: Path) -> None:
    done = judge(tmp_path, good=GOOD)
    assert done.returncode == 0
    assert done.stdout.count("workers: ") == 1
    assert "FLAKY" not in done.stderr


def test_what_fails_once_passes_with_its_whole_file_alone_and_is_named(tmp_path: Path) -> None:
    done = judge(tmp_path, good=GOOD, once=ONCE)
    assert done.returncode == 0, done.stderr
    second = done.stdout.split("workers: 0")[1]
    assert "2 passed" in second
    assert "FLAKY: failed beside other tests, passed alone: test_once.py\n" in done.stderr


def test_what_fails_twice_is_a_fault(tmp_path: Path) -> None:
    done = judge(tmp_path, good=GOOD, bad=BAD)
    assert done.returncode != 0
    assert done.stdout.count("1 failed") == 2
    assert "FLAKY" not in done.stderr


@pytest.mark.parametrize("text", [BAD, "import nothing_of_this_name\n"])
def test_more_than_three_files_are_no_chance(tmp_path: Path, text: str) -> None:
    done = judge(tmp_path, good=GOOD, **dict.fromkeys(("a", "b", "c", "d"), text))
    assert done.returncode != 0
    assert done.stdout.count("workers: ") == 1
    assert "FAILED: tests in 4 files" in done.stderr


def test_a_run_that_comes_to_no_test_is_a_fault(tmp_path: Path) -> None:
    done = judge(tmp_path, good=GOOD)
    assert done.returncode == 0
    (tmp_path / "conftest.py").write_text("raise RuntimeError('no tests today')\n")
    done = subprocess.run([tmp_path / ".ci/judge"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "second look" not in done.stderr
