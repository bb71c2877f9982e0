"""The tests that show the eight guarantees say today what they said when they were frozen.

A test is frozen as `ast.unparse` gives it, without its docstring and imports: so formatting,
comments and moved modules do not matter, and none loses a line or a case unseen.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

from tests.golden.compare import FILES, ROOT, Golden

NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
LIST = "guarantees.txt"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def promised() -> set[tuple[Path, str]]:
    """The tests that docs/guarantees.md names."""
    named = NAMED.findall((ROOT / "docs/guarantees.md").read_text())
    return {(ROOT / file, name) for file, name in named}


@cache
def functions_of(file: Path) -> dict[str, Function]:
    """The tests of a file, by name."""
    nodes = (node for node in ast.parse(file.read_text()).body if isinstance(node, Function))
    return {node.name: node for node in nodes if node.name.startswith("test_")}


def body_of(test: Function) -> str:
    """What a test does, and with which cases."""
    if ast.get_docstring(test) is not None:
        del test.body[0]
    test.body = [line for line in test.body if not isinstance(line, ast.Import | ast.ImportFrom)]
    return ast.unparse(test)


def hashes() -> Iterator[tuple[str, str]]:
    """Each test, and a hash of its body."""
    for file, name in sorted(promised()):
        body = body_of(functions_of(file)[name])
        yield f"{file.relative_to(ROOT)}::{name}", sha256(body.encode()).hexdigest()[:16]


def test_what_shows_a_guarantee_is_what_it_was(golden: Golden) -> None:
    now = dict(hashes())
    if golden.update:
        golden(LIST, "\n".join(f"{test} {its_hash}" for test, its_hash in now.items()))
    frozen = dict(line.split() for line in (FILES / LIST).read_text().splitlines())
    both = frozen.keys() & now.keys()
    changes = {
        "does something else": {test for test in both if frozen[test] != now[test]},
        "is lost": frozen.keys() - now,
        "is new": now.keys() - frozen,
    }
    told = [f"{test} {what}" for what, tests in changes.items() for test in sorted(tests)]
    if told:
        golden.differs("what shows the guarantees", "\n".join(told))


def test_what_a_test_does_is_seen_and_how_it_is_written_is_not() -> None:
    first, written_otherwise, other = (
        body_of(ast.parse(f"def test_it(): {lines}").body[0])  # type: ignore[arg-type]
        for lines in ("f(1, 2)", "\n  'Words.'\n  import f  # f\n  f(\n  1, 2\n)", "f(1, 3)")
    )
    assert first == written_otherwise != other
