"""What is installed is held against what is tested; a jax that does not fit is told in words."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from hotreload.cli.ops.doctor_checks import checkup
from hotreload.cli.ops.doctor_checks.checkup import check_engine
from hotreload.engine import versions
from hotreload.engine.upstream import build
from hotreload.engine.versions import SUPPORTED, imports_explained, why_refused, why_untested
from hotreload.errors import ConfigError


def has(monkeypatch: pytest.MonkeyPatch, **packages: str) -> None:
    named = {name.replace("_", "-"): version for name, version in packages.items()}
    for module in (versions, checkup):
        monkeypatch.setattr(module, "installed_version", named.get)


@pytest.mark.parametrize("engine", SUPPORTED)
def test_a_supported_release_with_its_jax_is_tested(
    monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    has(monkeypatch, sglang_jax=engine, jax=SUPPORTED[engine].jax)
    assert why_untested() is None


@pytest.mark.real_engine
def test_what_is_installed_here_is_tested() -> None:
    assert why_untested() is None


def test_another_jax_is_named_beside_the_one_that_is_tested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has(monkeypatch, sglang_jax="0.1.0rc0", jax="0.12.0")
    assert why_untested() == (
        "sglang-jax 0.1.0rc0 is tested with jax 0.10.2, and jax 0.12.0 is installed"
    )


@pytest.mark.parametrize("jax", ["0.9.2", "0.10.1", "0.11.3", "0.12.0.dev20260101"])
def test_a_jax_outside_the_range_that_a_release_runs_with_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, jax: str
) -> None:
    has(monkeypatch, sglang_jax="0.1.0rc0", jax=jax)
    refusal = f"sglang-jax 0.1.0rc0 runs with jax 0.10.2 to 0.11.2, and jax {jax} is installed"
    assert why_refused() == refusal
    monkeypatch.setattr(build, "_upstream", lambda: pytest.fail("it is not imported"))
    with pytest.raises(ConfigError) as told:
        build._ready_upstream()
    assert str(told.value) == f"{refusal}; {SUPPORTED['0.1.0rc0'].install}"
    assert check_engine(cast("Any", None)).says == refusal


@pytest.mark.parametrize("jax", ["0.10.2", "0.11.0", "0.11.2"])
def test_a_jax_within_that_range_is_only_told_of(monkeypatch: pytest.MonkeyPatch, jax: str) -> None:
    has(monkeypatch, sglang_jax="0.1.0rc0", jax=jax)
    assert why_refused() is None
    assert (why_untested() is None) == (jax != "0.11.0")
    has(monkeypatch, sglang_jax="0.0.2", jax=jax)
    assert why_refused() is None


def test_another_release_and_none_at_all_are_told_which_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has(monkeypatch, sglang_jax="0.9", jax="0.10.2")
    assert "sglang-jax 0.9 is not tested" in str(why_untested())
    has(monkeypatch, jax="0.10.2")
    assert "sglang-jax is not installed" in str(why_untested())
    assert all(release in str(why_untested()) for release in SUPPORTED)


def test_a_fault_of_an_import_is_ours_where_the_versions_are_tested() -> None:
    with pytest.raises(AttributeError), imports_explained():
        raise AttributeError("a slip of ours")


def test_an_import_that_fails_beside_another_jax_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has(monkeypatch, sglang_jax="0.1.0rc0", jax="0.12.0")
    with pytest.raises(ConfigError) as told, imports_explained():
        raise AttributeError("module 'jax.core' has no attribute 'Effect'")
    assert "jax 0.12.0 is installed" in str(told.value)
    assert "no attribute 'Effect'" in str(told.value)
    assert SUPPORTED["0.1.0rc0"].install in str(told.value)


@pytest.mark.parametrize(
    "verb",
    [
        ["serve", "--set", "engine.model=./m", "--set", "source.path=./c"],
        ["swap", "--model", ".", "--checkpoint", "."],
    ],
)
def test_a_start_beside_a_jax_it_cannot_be_imported_with_exits_78(
    tmp_path: Path, verb: list[str]
) -> None:
    (tmp_path / "flax.py").write_text("raise AttributeError('jax.core has no Effect')\n")
    (tmp_path / "jax-99.0.dist-info").mkdir()
    (tmp_path / "jax-99.0.dist-info/METADATA").write_text("Name: jax\nVersion: 99.0\n")
    told = subprocess.run(
        [sys.executable, "-m", "hotreload.cli", *verb],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path.cwd()}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert told.returncode == 78, told.stderr
    assert "jax.core has no Effect" in told.stderr
    assert "jax 99.0 is installed" in told.stderr
    assert "Traceback" not in told.stderr
