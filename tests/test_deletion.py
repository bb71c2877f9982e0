"""Each feature goes when its folder and its line go: what is left is sound, and works."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hotreload.features import FEATURES
from tests import record
from tests.source import MODULES, PACKAGE
from tests.test_layers import imports_of, is_within, name_of

ROOT = PACKAGE.parent
NAMES = [each.name for each in FEATURES]
BY_DAY = ("bake", "pause")
"""What goes by day, both at once: what is left has need of neither. At night each goes alone."""
NEEDED_BY: dict[str, dict[str, str]] = {
    "compare": {
        "hotreload.cli.trial.diff": "a verb that compares two checkpoints, without a daemon",
        "hotreload.library": "its `compare` does the same in somebody's own program",
    }
}
"""Modules beside a feature's folder that import it, and go with it; each list may only shrink."""
OF_A_DAEMON = {
    "tests/words/test_daemon.py": "a whole daemon, whose engine is one of words",
    "tests/server/test_view_routes.py": "the routes that look",
    "tests/server/test_flip.py": "requests while weights change",
}
OF_THE_KERNEL = {
    "tests/core": "the kernel",
    "tests/contracts/test_engine_contract.py": "the contract of engines, of which some are fakes",
}
ASKS_IT = {"compare": "tests/contracts/test_engine_contract.py"}
"""The module of tests, by the feature, that asks an engine what only this feature asks it."""
MARKS = "not real_engine and not bench and not soak and not at_night"


@pytest.mark.parametrize("name", NAMES)
def test_what_needs_a_feature_is_named(name: str) -> None:
    folder = PACKAGE / "features" / name
    others = [each for each in MODULES if not each.is_relative_to(folder)]
    its = {f"hotreload.features.{name}"}
    needing = {name_of(at) for at in others if any(is_within(i, its) for i in imports_of(at))}
    assert needing - {"hotreload.features"} == NEEDED_BY.get(name, {}).keys()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one tree after the other, with what mypy knows: it looks at changes alone."""
    scratch = tmp_path_factory.mktemp("deletion")
    if (known := ROOT / ".mypy_cache").exists():  # `make check` makes it
        shutil.copytree(known, scratch / "types")
    return scratch


@pytest.fixture
def tree(scratch: Path) -> Iterator[Path]:
    tree = scratch / "tree"
    tree.mkdir()
    for each in ("hotreload", "tests"):
        shutil.copytree(ROOT / each, tree / each)
    shutil.copy(ROOT / "pyproject.toml", tree)
    yield tree
    shutil.rmtree(tree)


def delete(tree: Path, name: str) -> None:
    """Remove its folder, its line in the tuple, and the import that this needs."""
    shutil.rmtree(tree / "hotreload" / "features" / name)
    shutil.rmtree(tree / "tests" / "features" / name)
    listed = tree / "hotreload" / "features" / "__init__.py"
    lines = listed.read_text().splitlines(keepends=True)
    kept = [line for line in lines if f"{name.upper()}_FEATURE" not in line]
    assert len(lines) - len(kept) == 2, "one import, and one line"
    listed.write_text("".join(kept))


def run(tree: Path, *words: str) -> None:
    """Run a module there; it must find nothing wrong."""
    ended = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=tree,
        env={name: value for name, value in os.environ.items() if name != record.VARIABLE},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]


NIGHT = pytest.mark.at_night  # by day the two together
TOGETHER = pytest.param(BY_DAY, id="-".join(BY_DAY))
EACH = [TOGETHER, *(pytest.param((name,), id=name, marks=NIGHT) for name in NAMES)]


@pytest.mark.parametrize("names", EACH)
def test_without_it_types_are_right_and_the_kernel_and_a_daemon_work(
    names: Sequence[str], tree: Path
) -> None:
    for name in names:
        delete(tree, name)
    run(tree, "mypy", "--cache-dir", str(tree.parent / "types"), "hotreload")
    asking = {ASKS_IT.get(name) for name in names}
    tests = [each for each in (*OF_A_DAEMON, *OF_THE_KERNEL) if each not in asking]
    run(tree, "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", MARKS, *tests)
