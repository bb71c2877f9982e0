"""An event in the log has a name to search for; what there is to say of it goes into fields."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.source import MODULES, PACKAGE, nodes_of

LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
NAME = re.compile(r"[a-z_]+\.[a-z_]+")
GIVEN = {
    "life/shutdown.py: event": "the ends of a daemon share one line of code",
}
"""Where the name is a parameter."""
HANDING_OVER = {"daemon.py": {"fail"}}
"""Calls whose last argument is such a name, by module."""


def calls_in(module: Path) -> Iterator[ast.Call]:
    for node in nodes_of(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node


def is_log(logger: ast.expr) -> bool:
    """`log`, `_log`, `self._log`, `logging` and `logging.getLogger(…)`."""
    return bool(re.search(r"(^|[._])(log|logger|logging|getLogger\(.*\))$", ast.unparse(logger)))


def names_in(module: Path) -> Iterator[ast.expr]:
    for call in calls_in(module):
        assert isinstance(call.func, ast.Attribute)
        if call.func.attr in LEVELS and is_log(call.func.value):
            yield call.args[0]
        elif call.func.attr in HANDING_OVER.get(str(module.relative_to(PACKAGE)), ()):
            yield from call.args[-1:]


def test_a_line_of_log_is_named_and_not_told() -> None:
    told = []
    for module in MODULES:
        place = module.relative_to(PACKAGE)
        for name in names_in(module):
            if isinstance(name, ast.Constant):
                if not NAME.fullmatch(str(name.value)):
                    told.append(f"{place}:{name.lineno}: {name.value!r}")
            elif f"{place}: {ast.unparse(name)}" not in GIVEN:
                told.append(f"{place}: {ast.unparse(name)}")
    assert told == []


def test_the_search_sees_the_lines_of_log() -> None:
    found = {n.value for m in MODULES for n in names_in(m) if isinstance(n, ast.Constant)}
    assert {"daemon.starting", "daemon.stopped_at_once", "source.polling", "hub.no_token"} <= found
    assert {"daemon.engine_lost", "failpoints.armed", "metrics.leaves_left_out"} <= found
