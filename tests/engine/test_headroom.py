"""Memory that is there and may not be taken."""

from pathlib import Path

from hotreload.engine.weights.host_memory import free_in_groups, host_bytes_free

MB = 2**20


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
    assert host_bytes_free() > 0
