"""`staging_threads = auto` takes what the machine has to spare, and no more than a limit allows."""

import os
from pathlib import Path

import pytest

from hotreload.engine.weights.memory import spare_processors
from hotreload.engine.weights.memory.spare_processors import MOST, count_threads, limits


def machine(patch: pytest.MonkeyPatch, processors: int, *limits: float) -> None:
    patch.setattr(os, "sched_getaffinity", lambda pid: set(range(processors)))
    patch.setattr(spare_processors, "limits", lambda membership, tree: iter(limits))


def test_a_number_is_that_number(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 4)
    assert count_threads(7, "idle") == 7


@pytest.mark.parametrize(
    ("processors", "idle", "normal"), [(1, 1, 1), (2, 2, 1), (6, 6, 3), (64, MOST, MOST)]
)
def test_idle_threads_may_have_all_others_half(
    monkeypatch: pytest.MonkeyPatch, processors: int, idle: int, normal: int
) -> None:
    machine(monkeypatch, processors)
    assert (count_threads("auto", "idle"), count_threads("auto", "normal")) == (idle, normal)


def test_a_limit_counts_what_idle_threads_take_too(monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, 64, 100.0, 4.5)
    assert count_threads("auto", "idle") == 2
    machine(monkeypatch, 64, 0.5)
    assert count_threads("auto", "idle") == 1


def test_limits_are_those_of_each_group_up_to_the_root(tmp_path: Path) -> None:
    group, membership = tmp_path / "tree" / "unit" / "part", tmp_path / "membership"
    group.mkdir(parents=True)
    membership.write_text("1:cpu:/\n0::/unit/part\n")
    (group / "cpu.max").write_text("max 100000\n")
    (group.parent / "cpu.max").write_text("250000 100000\n")
    assert list(limits(membership, tmp_path / "tree")) == [2.5]
