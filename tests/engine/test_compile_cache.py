"""Where compiled programs are kept, for whom, and what is refused; JAX is not asked."""

import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotreload.engine import compile_cache
from hotreload.engine.compile_cache import JAX_VARIABLE, CompileCache, keeping_programs
from hotreload.errors import ConfigError


def devices(kind: str = "TPU v5e", count: int = 4, platform: str = "tpu") -> list[Any]:
    client = SimpleNamespace(platform=platform, platform_version="libtpu 1")
    found = [
        SimpleNamespace(device_kind=kind, process_index=0, coords=(at, 0, 0), client=client)
        for at in range(count)
    ]
    client.devices = lambda: found
    return found


@pytest.fixture(autouse=True)
def nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(JAX_VARIABLE, raising=False)


def used(cache: CompileCache | None, of: list[Any] | None = None) -> Path | None:
    """Where an engine that starts now is told to keep what it compiles."""
    with keeping_programs(cache, of or devices()):
        told = os.environ.get(JAX_VARIABLE)
    assert JAX_VARIABLE not in os.environ
    return Path(told) if told else None


def default(folder: Path) -> CompileCache:
    return CompileCache(folder / "compiled", is_default=True)


def test_it_is_made_for_us_alone_and_found_again(tmp_path: Path) -> None:
    first = used(default(tmp_path))
    assert first is not None
    assert first.parent == tmp_path / "compiled"
    assert [each.stat().st_mode & 0o777 for each in (first, first.parent)] == [0o700, 0o700]
    assert used(default(tmp_path)) == first


def test_each_set_of_versions_and_devices_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = CompileCache(tmp_path / "named")
    found = {used(cache), used(cache, devices(count=8)), used(cache, devices("TPU v6e"))}
    with monkeypatch.context() as patched:
        patched.setattr(compile_cache, "_processor", lambda: ["another"])
        found.add(used(cache))
    for name in ("hotreload", "jax", "jaxlib", "sglang-jax"):
        with monkeypatch.context() as patched:
            patched.setattr(
                compile_cache, "installed_version", lambda asked, n=name: f"9{asked == n}"
            )
            found.add(used(cache))
    assert len(found) == len(set(map(str, found))) == 8


def test_without_one_what_the_environment_says_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert used(None) is None
    monkeypatch.setenv(JAX_VARIABLE, "/somewhere")
    with keeping_programs(None, devices()):
        assert os.environ[JAX_VARIABLE] == "/somewhere"


def test_those_used_last_stay_and_a_named_folder_is_never_cleared(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    kinds = ["TPU v4", "TPU v5e", "TPU v6e"]
    for cache in (default(tmp_path), CompileCache(tmp_path / "named")):
        made = []
        for at, kind in enumerate(kinds):
            folder = used(cache, devices(kind))
            assert folder is not None
            made.append(folder)
            if at < 2:
                os.utime(folder, (at, at))
        left = [folder.exists() for folder in made]
        assert left == ([False, True, True] if cache.is_default else [True, True, True])
    removed = [record.removed for record in caplog.records if record.removed]  # type: ignore[attr-defined]
    assert [len(each) for each in removed] == [1]


OPEN = "could put programs into it"
IN_ITS_PLACE = "could put another cache in the place of this one"


@pytest.mark.parametrize(
    ("place", "mode", "why"),
    [("compiled", 0o750, OPEN), ("compiled", 0o777, OPEN), (".", 0o777, IN_ITS_PLACE)],
)
def test_a_folder_that_others_may_use_is_refused_in_words(
    tmp_path: Path, place: str, mode: int, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "compiled"
    root.mkdir(mode=0o700)
    (tmp_path / place).chmod(mode)
    with pytest.raises(ConfigError, match=rf"^\[engine\] compile_cache: .*{why}.*chmod"):
        used(CompileCache(root))
    # Nobody named it: the start goes on, compiles anew, and says so.
    assert used(CompileCache(root, is_default=True)) is None
    (warned,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert warned.message == "compile_cache.not_used"
    assert why in warned.why  # type: ignore[attr-defined]


def test_a_folder_of_anothers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = CompileCache(tmp_path / "compiled")
    used(cache)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    with pytest.raises(ConfigError, match=f"belongs to uid {other - 1}"):
        used(cache)


def test_where_everybody_may_make_files_and_remove_none_it_may_lie(tmp_path: Path) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    assert used(CompileCache(shared / "compiled")) is not None


def test_a_link_to_it_is_followed_and_both_ways_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir(mode=0o700)
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    for at, mode in ((tmp_path / "link", None), (open_to_all / "link", 0o777)):
        at.symlink_to(tmp_path / "far")
        if mode is None:
            assert used(CompileCache(at)) is not None
        else:
            open_to_all.chmod(mode)
            with pytest.raises(ConfigError, match=IN_ITS_PLACE):
                used(CompileCache(at))


def test_a_disk_that_takes_nothing_costs_a_named_folder_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"\[engine\] compile_cache: .*File exists"):
        used(CompileCache(tmp_path / "file"))
    assert used(CompileCache(tmp_path / "file", is_default=True)) is None


PROGRAM = """
import os, sys
from pathlib import Path
import jax
from hotreload.engine import compile_cache
from hotreload.engine.compile_cache import CompileCache, keeping_programs

def hits(version):
    compile_cache.installed_version = lambda name: version
    told = []
    jax.monitoring.register_event_listener(lambda event, **more: told.append(event))
    with keeping_programs(CompileCache(Path(sys.argv[1])), jax.devices()):
        folder = os.environ["JAX_COMPILATION_CACHE_DIR"]  # as upstream does when it starts
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.jit(lambda x: x * 3 + 1)(2.0)
    return told.count("/jax/compilation_cache/cache_hits")

for version in sys.argv[2:]:
    if not os.fork():  # a process each, with the same imports
        print(hits(version), flush=True)
        os._exit(0)
    os.wait()
"""


def test_what_another_version_compiled_is_not_read(tmp_path: Path) -> None:
    """JAX's own key does not know who changed what it is given to compile."""

    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "compiled"), "1", "1", "2"]
    told = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    first, again, another = map(int, told.split())
    assert (first, another) == (0, 0)
    assert again > 0
