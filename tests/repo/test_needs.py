"""CI cannot be green by skipping what it could have run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.children import is_there
from tests.needs import VARIABLE, had_all_the_same
from tests.waiting import look_until

ROOT = Path(__file__).parents[2]
TARGETS = ("setup", "check", "test")
NO_TMUX = "there is no tmux: apt-get install tmux"
SKIPS = f"""
import pytest

@pytest.mark.skipif(True, reason="{NO_TMUX}")
def test_that_needs_tmux() -> None: ...

@pytest.mark.xfail
def test_that_fails_as_expected() -> None:
    pytest.fail("apt-get install tmux")
"""


@pytest.mark.parametrize(
    ("nodeid", "reason", "has", "package"),
    [
        ("tests/cli/test_x.py::test_a", NO_TMUX, "", None),
        ("tests/cli/test_x.py::test_a", NO_TMUX, "chromium", None),
        ("tests/cli/test_x.py::test_a", NO_TMUX, "chromium tmux", "tmux"),
        ("tests/systemd/test_x.py::test_a", "needs namespaces", "systemd", "systemd"),
        ("tests/systemd/test_x.py::test_a", "needs namespaces", "tmux", None),
        ("tests/cli/test_x.py::test_a", "only root may", "systemd tmux", None),
    ],
)
def test_a_skip_is_a_fault_only_where_ci_has_what_it_lacks(
    nodeid: str, reason: str, has: str, package: str | None
) -> None:
    assert had_all_the_same(nodeid, reason, has) == package


@pytest.mark.parametrize(("has", "code"), [("", 0), ("zsh", 0), ("tmux", 1)])
def test_a_test_that_skips_without_reason_fails(tmp_path: Path, has: str, code: int) -> None:
    (tmp_path / "test_x.py").write_text(SKIPS)
    (tmp_path / "conftest.py").write_text("from tests.needs import pytest_runtest_makereport\n")
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-c", os.devnull, "test_x.py"]
    bare = {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environ = {**os.environ, **bare, VARIABLE: has}
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", f"--rootdir={tmp_path}"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stdout
    assert NO_TMUX in done.stdout
    assert "1 xfailed" in done.stdout


class Runner:
    """`.ci/run` beside a set-up and a make that do nothing, on a PATH of its own."""

    def __init__(self, root: Path, uid: int) -> None:
        self.bin = root / "bin"
        self.script = root / "project" / ".ci" / "run"
        for folder in (self.bin, self.script.parent):
            folder.mkdir(parents=True)
        for name in ("run", "judge"):
            shutil.copy(ROOT / ".ci" / name, self.script.with_name(name))
        (root / "project" / "tests").mkdir()
        (root / "project" / "tests" / "quarantine.txt").touch()
        self.add("id", f"echo {uid}")
        self.add("make", f'echo "$1: ${VARIABLE}"')
        self.add(self.script.with_name("setup"), "exit 0")
        python = root / "project" / ".venv-0.1" / "bin" / "python"
        python.parent.mkdir(parents=True)
        self.add(python)
        tools = "bash cat date dirname grep mkdir mktemp nice rm rmdir sed sort"
        for tool in tools.split():
            (self.bin / tool).symlink_to(shutil.which(tool) or tool)

    def add(self, name: str | Path, does: str = "exit 0") -> None:
        file = self.bin / name
        file.write_text(f"#!/bin/sh\n{does}\n")
        file.chmod(0o755)

    def run(self) -> list[str]:
        done = subprocess.run(
            ["/bin/bash", self.script],
            env={"PATH": str(self.bin)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()


def test_without_root_ci_demands_only_what_is_there(tmp_path: Path) -> None:
    runner = Runner(tmp_path, uid=1000)
    runner.add("apt-get", "exit 1")
    assert set(runner.run()) == {f"{target}: " for target in TARGETS}
    for tool in ("tmux", "node", "systemd-analyze"):
        runner.add(tool)
    looks = {f"{target}: tmux nodejs" for target in TARGETS}
    assert set(runner.run()) == {"setup: ", *looks}  # the first goes on beside the looking


def test_as_root_ci_demands_a_real_systemd_only_where_one_can_be_booted(tmp_path: Path) -> None:
    runner = Runner(tmp_path, uid=0)
    for tool in ("systemd-analyze", "tmux", "chromium", "zsh", "fish", "promtool", "node"):
        runner.add(tool)
    runner.add("unshare", "exit 1")
    rest = "tmux chromium zsh fish prometheus nodejs"
    assert f"test: {rest}" in runner.run()


def test_ci_fails_when_an_installation_beside_the_checks_does(tmp_path: Path) -> None:
    runner = Runner(tmp_path, uid=1000)
    runner.add("apt-get", "exit 1")
    runner.add("make", '[ "$*" != "setup ENGINE=0.1" ]')
    with pytest.raises(subprocess.CalledProcessError):
        runner.run()


def test_ci_says_what_failed_on_the_newer_engine_beside_the_rest(tmp_path: Path) -> None:
    runner = Runner(tmp_path, uid=1000)
    runner.add("apt-get", "exit 1")
    runner.add("make", 'echo "$1"; [ "$1 $2" != "test ENGINE=0.1" ] || { echo no; exit 1; }')
    with pytest.raises(subprocess.CalledProcessError) as failed:
        runner.run()
    *_, beside, no, red = failed.value.stdout.splitlines()
    assert (beside, no) == ("test", "no")
    assert red == "RED: the tests did not come to their end."


def test_what_ci_runs_beside_a_red_check_ends_with_it(tmp_path: Path) -> None:
    runner, pid = Runner(tmp_path, uid=1000), tmp_path / "pid"
    runner.add("apt-get", "exit 1")
    beside = f"echo $$ >{pid}; exec {shutil.which('sleep')} 600"
    until = f"while [ ! -s {pid} ]; do :; done; exit 1"
    runner.add("make", f'case "$1 $2" in "test ENGINE=0.1") {beside} ;; "check ") {until} ;; esac')
    with pytest.raises(subprocess.CalledProcessError):
        runner.run()
    look_until(lambda: not is_there(int(pid.read_text())), lambda: "it goes on", seconds=9)


def test_ci_installs_all_that_a_skip_names() -> None:
    skips = "\n".join(file.read_text() for file in (ROOT / "tests").rglob("*.py"))
    script = (ROOT / ".ci/run").read_text()
    for package in ("systemd", "tmux", "chromium", "zsh", "fish", "prometheus", "nodejs"):
        assert f":{package}" in script
        assert f"apt-get install {package}" in skips or package in ("zsh", "fish")
