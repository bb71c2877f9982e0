"""The closing table counts each kind of fault, and says what came of it, however a run ends."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.histories import drive
from tests.histories.faults import Kind
from tests.histories.record import (
    Ended,
    Fault,
    Heard,
    Life,
    Publication,
    Record,
    Request,
    Said,
)
from tests.histories.survived import survivors
from tests.histories.table import table


def over(revision: str, outcome: str, code: str | None = None) -> Heard:
    return Heard(1, 5, {"event": f"reload.{outcome}", "revision": revision, "code": code})


def answer(start: float, text: str = "says a") -> Request:
    said = (Said(1, "a", "fp", text),)
    return Request(start, start + 0.5, "/generate", Ended.ANSWERED, 200, said=said)


def asked(*requests: Request) -> Record:
    """A record of one sound checkpoint, and a fault from 1 to 2."""
    published = Publication(0, "step_1", "a", "says a")
    return Record(0, [published], list(requests), faults=[Fault("a fault", 1, 2, "")])


@pytest.mark.parametrize(
    ("requests", "is_survived"),
    [
        ([answer(0.2), answer(2.1)], True),
        ([answer(0.2)], False),
        ([answer(0.2), answer(1.2)], False),
        ([answer(2.1, "says b")], False),
        ([answer(1.2, "says b"), answer(2.1)], False),
        ([answer(0.2, "says b"), answer(2.1)], True),
        ([answer(2.1), answer(3.1, "says b")], True),
        ([Request(2.1, 2.2, "/generate", Ended.REFUSED, 503), answer(40)], True),
        ([Request(2.1, 62.1, "/generate", Ended.HUNG)], False),
    ],
    ids=[
        "answered afterwards",
        "silent",
        "answered in the middle, and silent",
        "wrong afterwards",
        "wrong in the middle",
        "wrong before it",
        "wrong long after it",
        "refused at first",
        "hangs",
    ],
)
def test_a_fault_is_survived_when_the_next_who_asks_gets_a_right_answer(
    requests: list[Request], is_survived: bool
) -> None:
    assert survivors(asked(*requests)) == [is_survived]


def test_a_row_tells_how_often_a_fault_was_survived_and_what_came_of_it() -> None:
    record = Record(7)
    record.lives.append(Life(1, 0, ended=60, told="stop", exit_code=0))
    record.heard += [over("a", "live"), over("b", "rejected", "nonfinite")]
    record.faults += [
        Fault("a checkpoint", 1, 2, "", ("a",)),
        Fault("a checkpoint", 2, 3, "", ("never tried",)),
        Fault("a checkpoint", 3, 4, "killed", ("b",)),
    ]
    record.publications.append(Publication(0, "step_1", "a", "says a"))
    record.requests += [answer(2.1), answer(3.1)]
    heads, line, row, _, summed, *_ = table(record).splitlines()
    assert heads.split() == ["fault", "injected", "survived", "what", "came", "of", "it"]
    assert set(line) == {"-"}
    name, injected, survived, came_of = (part for part in row.split("  ") if part)
    assert (name, injected.strip(), survived.strip()) == ("a checkpoint", "3", "2")
    told = {"1x live", "1x rejected nonfinite", "1x overtaken", "1x killed"}
    assert set(came_of.strip().split(", ")) == told
    assert summed == (
        "seed 7: 3 faults, 2 survived, in 1.0 min, 1 lives, 0 of them killed, 0 generations live"
    )


class WorldThatBreaks:
    """Enough of a world for a fault that falls over."""

    def __init__(self, folder: Path, record: Record, chance: Any, modes: Any) -> None:
        self.record = record
        self.asking = self

    @contextmanager
    def living(self) -> Iterator[None]:
        yield

    @contextmanager
    def clients(self, count: int, seed: int) -> Iterator[None]:
        yield

    def serves_again(self) -> bool:
        return False


def falls_over(world: Any) -> str:
    raise RuntimeError("no more")


@pytest.mark.parametrize("act", [falls_over, lambda world: "done"], ids=["breaks", "kills"])
def test_a_run_that_breaks_off_leaves_its_record_and_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Any
) -> None:
    monkeypatch.setattr(drive, "World", WorldThatBreaks)
    shown: list[str] = []
    with pytest.raises((RuntimeError, AssertionError), match=r"no more|does not serve"):
        drive.judged(tmp_path, 7, [Kind("a fault", 1, act)], shown.append)
    assert '"name": "a fault"' in (tmp_path / "record.jsonl").read_text()
    (row,) = (line for line in shown[0].splitlines() if line.startswith("a fault"))
    assert row.split()[2:4] == ["1", "0"]


SOAK = """
def test_faults(show_last):
    show_last("the table")

def test_after_it():
    assert False
"""


def test_the_tables_are_what_a_soak_ends_in(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parents[1] / "soak" / "conftest.py", tmp_path)
    (tmp_path / "test_soak.py").write_text(SOAK)
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", "-p", "no:cacheprovider"]
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(
        [*command, tmp_path], env=environ, capture_output=True, text=True, check=False
    )
    *_, heading, shown, count = ran.stdout.splitlines()
    assert "faults injected and survived" in heading
    assert shown == "the table"
    assert "1 failed, 1 passed" in count
