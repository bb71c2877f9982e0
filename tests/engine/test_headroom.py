"""Memory that is there and may not be taken, and whether what is there is enough."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotreload.engine.weights.memory import headroom
from hotreload.engine.weights.memory.host_memory import free_in_groups, host_bytes, host_bytes_free
from hotreload.errors import NotEnoughMemory

MB = 2**20
BYTE = np.dtype(np.uint8)


def group(folder: Path, *, limit: str, used: int, cached: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\n")


def test_each_limit_on_the_way_to_the_root_counts(tmp_path: Path) -> None:
    tree = tmp_path / "cgroup"
    group(tree / "system.slice", limit=str(100 * MB), used=40 * MB)
    group(tree / "system.slice/hotreload.service", limit=str(50 * MB), used=30 * MB, cached=10 * MB)
    membership = tmp_path / "membership"
    membership.write_text("4:memory:/old\n0::/system.slice/hotreload.service\n")
    assert sorted(free_in_groups(membership, tree)) == [30 * MB, 60 * MB]


def test_a_group_without_a_limit_limits_nothing(tmp_path: Path) -> None:
    tree = tmp_path / "cgroup"
    group(tree / "a", limit="max", used=40 * MB)
    membership = tmp_path / "membership"
    membership.write_text("0::/a\n")
    assert list(free_in_groups(membership, tree)) == []
    assert list(free_in_groups(tmp_path / "no such file", tree)) == []


def test_on_this_machine_it_is_a_number() -> None:
    assert host_bytes() > host_bytes_free() > 0


# --- where more weights are to lie ------------------------------------------------------------


class Device:
    """One with so much memory, and so much of it taken; a CPU's tells nothing."""

    def __init__(self, name: str, free: int | None = None) -> None:
        self.platform = "cpu" if free is None else "tpu"
        self._name, self._free = name, free

    def memory_stats(self) -> dict[str, int] | None:
        if self._free is None:
            return None
        return {"bytes_limit": 100 * MB, "bytes_in_use": 100 * MB - self._free}

    def __str__(self) -> str:
        return self._name


@dataclass
class Placed:
    """An array, or what describes one: a share of it on each device."""

    devices: list[Device]
    parts: int = 1
    dtype: Any = BYTE
    shape: tuple[int, ...] = (10 * MB,)

    @property
    def sharding(self) -> "Placed":
        return self

    @property
    def addressable_devices(self) -> list[Device]:
        return self.devices

    def shard_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0] // self.parts, *shape[1:])


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def has(free: int) -> None:
        monkeypatch.setattr(headroom, "host_bytes_free", lambda: free)
        monkeypatch.setattr(headroom, "host_bytes", lambda: 100 * MB)

    has(1000 * MB)
    return has


def test_a_device_needs_its_share_of_what_is_split_and_all_of_what_is_not() -> None:
    devices = [Device("one", 0), Device("two", 0)]
    shares = headroom.shares_of([Placed(devices, parts=2), Placed(devices), Placed(devices[1:])])
    assert list(shares.values()) == [15 * MB, 25 * MB]


@pytest.mark.usefixtures("host")
def test_a_lack_is_told_by_place_and_in_bytes_and_what_to_do_about_it() -> None:
    leaf, pool = Placed([Device("TPU_0", 20 * MB), Device("TPU_1", 12 * MB)]), 2
    headroom.check_headroom([leaf])
    with pytest.raises(NotEnoughMemory) as told:
        headroom.check_headroom([leaf], beside=[Placed(leaf.devices, shape=(pool * MB + 7,))])
    words = str(told.value)
    assert words.startswith("TPU_1 has 0.01 GB free")
    assert ": 7 bytes are missing; " in words
    assert "[reload] memory = 'host'" in words


def test_the_host_needs_room_for_the_loader_and_where_it_is_the_device_for_the_leaves_too(
    host: Callable[[int], None],
) -> None:
    far, here = Placed([Device("TPU_0", 50 * MB)]), Placed([Device("CPU_0")])
    host(10 * MB)
    headroom.check_headroom([far], on_host=10 * MB)
    headroom.check_headroom([here])
    with pytest.raises(NotEnoughMemory, match=f"host memory has.*: {4 * MB} bytes are missing"):
        headroom.check_headroom([here], on_host=4 * MB)
    with pytest.raises(NotEnoughMemory, match=r"host memory has.*: 1 bytes are missing"):
        headroom.check_headroom([far], on_host=10 * MB + 1)


@pytest.mark.parametrize(
    ("memory", "free", "why"),
    [
        ("double", 0, None),
        ("host", 90 * MB, "[reload] memory = 'host'"),
        ("auto", 12 * MB, None),
        ("auto", 12 * MB - 1, "[reload] memory = 'auto': TPU_0 has 0.01 GB free"),
        ("auto", 0, f"{12 * MB} bytes are missing"),
    ],
)
def test_one_set_at_a_time_where_it_is_asked_for_or_two_and_their_proof_do_not_fit(
    host: Callable[[int], None], memory: str, free: int, why: str | None
) -> None:
    host(0)  # no reason to have weights wait there
    devices = [Device("TPU_0", free)]
    told = headroom.why_one_set(memory, [Placed(devices)], [Placed(devices, shape=(2 * MB,))])
    assert told is None if why is None else why in str(told)


def test_a_further_set_leaves_a_part_of_each_place_free_for_the_answering(
    host: Callable[[int], None],
) -> None:
    """A sixteenth: of the device's 100 MB, and of the host's where that is the device."""
    kept = 100 * MB // headroom.KEPT_FREE
    far, here = [Placed([Device("TPU_0", 10 * MB + kept)])], [Placed([Device("CPU_0")])]
    assert headroom.why_no_further(far, on_host=2000 * MB) is None  # its staging says that
    assert headroom.why_no_further([*far, Placed(far[0].devices, shape=(1,))], on_host=0) == (
        "TPU_0 has 0.01 GB to spare, one more set of weights needs 0.01 GB: 1 bytes are missing"
    )
    host(12 * MB + kept)
    assert headroom.why_no_further(here, on_host=2 * MB) is None
    assert "host memory has" in str(headroom.why_no_further(here, on_host=2 * MB + 1))


def test_on_a_cpu_auto_looks_at_the_memory_of_the_host(host: Callable[[int], None]) -> None:
    leaf = Placed([Device("CPU_0")])
    host(10 * MB)
    assert headroom.why_one_set("auto", [leaf], []) is None
    host(10 * MB - 1)
    assert "1 bytes are missing" in str(headroom.why_one_set("auto", [leaf], []))
