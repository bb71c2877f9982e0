"""The package's own source, parsed once for all the tests of a process that look at it."""

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "hotreload"
MODULES = sorted(PACKAGE.rglob("*.py"))


@cache
def tree_of(module: Path) -> ast.Module:
    """The module as Python reads it."""
    return ast.parse(module.read_text())


@cache
def nodes_of(module: Path) -> tuple[ast.AST, ...]:
    """All that is in it, at whatever depth."""
    return tuple(ast.walk(tree_of(module)))
