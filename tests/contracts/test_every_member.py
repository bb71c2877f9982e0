"""The contract tests use every member of the port they are about: none is promised unseen."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotreload.core.ports import Source
from hotreload.life.running_engine import (
    AheadCompiler,
    RunningAnswers,
    RunningEngine,
    RunningSets,
    RunningSwitch,
    RunningUnseen,
)

CONTRACTS = Path(__file__).parent


def members_used(test: Path, of: str) -> Iterator[str]:
    """What is asked of a value called so, or of a thing's attribute of that name."""
    for node in ast.walk(ast.parse(test.read_text())):
        if isinstance(node, ast.Attribute):
            asked = node.value
            if of in (getattr(asked, "id", None), getattr(asked, "attr", None)):
                yield node.attr


@pytest.mark.parametrize(
    ("port", "test", "name"),
    [
        (RunningEngine, "test_engine_contract.py", "engine"),
        (RunningSets, "test_engine_contract.py", "weights"),
        (RunningSwitch, "test_engine_contract.py", "switch"),
        (RunningUnseen, "test_engine_contract.py", "unseen"),
        (RunningAnswers, "test_engine_contract.py", "answers"),
        (AheadCompiler, "test_engine_contract.py", "ahead"),
        (Source, "test_source_contract.py", "source"),
    ],
)
def test_every_member_of_a_port_is_part_of_its_contract(port: Any, test: str, name: str) -> None:
    promised = port.__protocol_attrs__
    assert len(promised) >= 3
    assert promised - set(members_used(CONTRACTS / test, name)) == set()
