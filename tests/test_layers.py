"""Arrows only go right: cli → daemon → {its parts} → core → vocabulary."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "hotreload"
VOCABULARY = {"types", "errors", "events", "failpoints"}
SIBLINGS = ("sources", "checks", "engine", "observe", "server", "tiny")
MODULES = sorted(PACKAGE.rglob("*.py"))

MAY_IMPORT = {
    "types": set(),
    "failpoints": set(),
    "errors": {"types"},
    "events": VOCABULARY,
    "core": {"core", *VOCABULARY},
    **{sibling: {sibling, "core", *VOCABULARY} for sibling in SIBLINGS},
}
ONLY_IN = {
    "jax": {"engine"},
    "flax": {"engine"},
    "sgl_jax": {"engine"},
    "prometheus_client": {"observe"},
    "fastapi": {"server"},
    "watchdog": {"sources"},
    "huggingface_hub": {"sources"},
}


def layer_of(module: Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute here"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("module", MODULES, ids=lambda m: str(m.relative_to(PACKAGE)))
def test_arrows_only_go_right(module: Path) -> None:
    layer = layer_of(module)
    for name in imports_of(module):
        root, _, rest = name.partition(".")
        if root == "hotreload" and rest and layer in MAY_IMPORT:
            assert rest.split(".")[0] in MAY_IMPORT[layer] | {"__version__"}, name
        if root in ONLY_IN:
            assert layer in ONLY_IN[root], f"{root} is imported in {layer}"


@pytest.mark.parametrize("module", MODULES, ids=lambda m: str(m.relative_to(PACKAGE)))
def test_settings_are_read_by_the_daemon_and_the_command_line_alone(module: Path) -> None:
    reads_settings = any(
        name.startswith(("hotreload.config", "hotreload.settings")) for name in imports_of(module)
    )
    assert not reads_settings or layer_of(module) in {
        "daemon",
        "parts",
        "cli",
        "config",
        "settings",
        "settings_kinds",
        "settings_source",
        "boot",
        "start_engine",
    }
