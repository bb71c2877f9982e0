"""`.ci/judge` forgives no failed assertion, and lateness only to a test that a list names."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path

import pytest

from tests.waiting import look_until

ROOT = Path(__file__).parents[2]
TODAY = date(2026, 3, 1)

MAKEFILE = """
test:
\t@./run '$(WORKERS)' '$(ARGS)'
"""
# Stands for `make test`: each run fails as the next of the files says, and tells how many
# processes the judge has beside it.
RUN = """#!/bin/sh
touch runs && echo run >>runs && number=$(wc -l <runs)
judge=$(awk '/^PPid/ { print $2 }' /proc/$PPID/status)
echo "workers: $1 of: $2 beside: $(($(wc -w </proc/$judge/task/$judge/children) - 1))"
[ -e failed.$number ] || exit 0
cp failed.$number $HOTRELOAD_TEST_RECORD/failed
exit 1
"""
# Whatever the day is: midnight may come between two looks at it.
DATE = f"""#!/bin/sh
[ "$1" = -d ] && exec {shutil.which("date")} -d "{TODAY} $2" "$3"
echo {TODAY}
"""
LATE, OTHER = "tests/test_x.py::test_late", "tests/test_y.py::test_other"
BESIDE = "beside a load on each core"
AGAIN = (f"time {LATE}", f"time {LATE}[again]")
"""A test may fail more than once, and with several parameters."""


class Judge:
    """The real one, beside a `make test` that does as it is told."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in (".ci", "bin", "tests"):
            (root / folder).mkdir()
        shutil.copy(ROOT / ".ci/judge", root / ".ci/judge")
        (root / "Makefile").write_text(MAKEFILE)
        for name, script in (("run", RUN), ("bin/date", DATE)):
            (root / name).write_text(script)
            (root / name).chmod(0o755)
        (root / "tests/test_x.py").write_text("def test_late(n): ...\n")
        self.quarantine()

    def quarantine(self, *lines: str) -> None:
        head = "# DATE TEST REASON\n"
        (self.root / "tests/quarantine.txt").write_text("\n".join((head, *lines, "")))

    def of(self, *runs: Sequence[str] | None) -> subprocess.CompletedProcess[str]:
        """Let the runs of tests fail so, one after another; None passes, and so do later ones."""
        for number, failed in enumerate(runs, start=1):
            if failed is not None:
                (self.root / f"failed.{number}").write_text("\n".join((*failed, "")))
        child = subprocess.Popen(
            [self.root / ".ci/judge"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # Without what a make around this has set.
            env={"PATH": f"{self.root / 'bin'}:{os.environ['PATH']}"},
            start_new_session=True,
        )
        out, err = child.communicate()
        look_until(lambda: not is_there(child.pid), lambda: "something of it goes on", seconds=9)
        return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def is_there(group: int) -> bool:
    """Tell whether any process of the group lives."""
    with suppress(ProcessLookupError):
        os.killpg(group, 0)
        return True
    return False


@pytest.fixture
def judge(tmp_path: Path) -> Judge:
    return Judge(tmp_path)


def test_what_passes_is_run_once(judge: Judge) -> None:
    done = judge.of()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "workers:  of:  beside: 0\n"


@pytest.mark.parametrize("failed", [[f"fault {OTHER}"], [*AGAIN, f"fault {OTHER}"]])
def test_a_failed_assertion_has_no_second_look(judge: Judge, failed: Sequence[str]) -> None:
    judge.quarantine(f"{TODAY} {LATE} it is slow", f"{TODAY} {LATE} and slower")
    done = judge.of(failed)
    assert done.returncode == 1
    assert f"RED: these failed, and not by running out of time; mend them:\n{OTHER}" in done.stderr
    assert done.stdout.count("workers: ") == 1


def test_what_ran_out_of_time_is_looked_at_three_times_beside_a_load_on_each_core(
    judge: Judge,
) -> None:
    done = judge.of(AGAIN)
    look = f"workers: 0 of: tests/test_x.py  beside: {len(os.sched_getaffinity(0))}"
    assert done.stdout.splitlines()[1:] == [look] * 3


def test_it_stays_red_and_says_what_to_do(judge: Judge) -> None:
    done = judge.of((*AGAIN, f"time {OTHER}"))
    assert done.returncode == 1
    assert (
        f"RED: these ran out of time, then passed 3 times beside a load on each core:\n{LATE}\n"
        in done.stderr
    )
    assert done.stderr.endswith(
        f"add a line for each to tests/quarantine.txt:\n{TODAY} {LATE} WHY\n{TODAY} {OTHER} WHY\n"
    )


def test_the_list_forgives_the_one_that_it_names(judge: Judge) -> None:
    judge.quarantine(f"{TODAY - timedelta(days=14)} {LATE} issue 7")
    done = judge.of(AGAIN)
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith(f"QUARANTINED: ran out of time, then passed 3 times: {LATE}\n")


def test_the_list_forgives_no_other_beside_it(judge: Judge) -> None:
    judge.quarantine(f"{TODAY} {LATE} issue 7")
    done = judge.of((*AGAIN, f"time {OTHER}"))
    assert done.returncode == 1
    assert f"{BESIDE}:\n{OTHER}\nMend" in done.stderr


@pytest.mark.parametrize("looks", [1, 2, 3])
def test_the_list_does_not_help_what_fails_again(judge: Judge, looks: int) -> None:
    judge.quarantine(f"{TODAY} {LATE} issue 7")
    done = judge.of(AGAIN, *[None] * (looks - 1), AGAIN)
    assert done.returncode == 1
    assert "RED: their files failed again" in done.stderr
    assert done.stdout.count("workers: 0") == looks


def test_four_files_out_of_time_are_no_chance(judge: Judge) -> None:
    done = judge.of([f"time tests/test_{name}.py::test_it" for name in "abcd"])
    assert done.returncode == 1
    assert "more than 3 files ran out of time; that is no chance" in done.stderr
    assert done.stdout.count("workers: ") == 1


def test_a_run_that_comes_to_no_end_is_red(judge: Judge) -> None:
    done = judge.of(())
    assert done.returncode == 1
    assert "RED: the tests did not come to their end." in done.stderr


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([f"{TODAY} {LATE}"], "is not DATE TEST REASON"),
        ([f"{LATE} {TODAY} issue 7"], "is not DATE TEST REASON"),
        ([f"{TODAY} {LATE}r issue 7"], "there is no"),
        ([f"{TODAY - timedelta(days=15)} {LATE} issue 7"], "longer than 14 days"),
        ([f"{TODAY + timedelta(days=1)} {LATE} issue 7"], "is yet to come"),
        ([f"{TODAY} {LATE} issue {number}" for number in range(6)], "more than 5 tests"),
    ],
)
def test_a_list_that_would_forgive_more_is_red_before_any_test_runs(
    judge: Judge, lines: list[str], told: str
) -> None:
    judge.quarantine(*lines)
    done = judge.of()
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("RED: tests/quarantine.txt: ")
    assert told in done.stderr
