"""The kernel changes weights and lets requests in; it knows none of the features beside it.

Each list and each ceiling here may only shrink.
"""

import ast
import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from hotreload.attempts import NOT_PROBED, Attempt
from hotreload.core.progress import AttemptProgress
from hotreload.core.rules import ReloadSettings, Rules
from hotreload.feature import Feature, FeatureParts, Given
from hotreload.features import FEATURES
from hotreload.server.model import ModelRequest
from hotreload.settings.tables import every
from hotreload.types import Revision
from tests.evidence import BLANK
from tests.features.given import metrics_of
from tests.source import MODULES, PACKAGE, nodes_of, tree_of
from tests.test_layers import known_names, modules_imported_by, name_of

KERNEL = [module for module in MODULES if module.is_relative_to(PACKAGE / "core")]
OF_FEATURES = [module for module in MODULES if module.is_relative_to(PACKAGE / "features")]
OF_RELOAD = 18
"""The settings of [reload], which the kernel goes by and declares."""
CEILINGS = {ReloadSettings: OF_RELOAD, Rules: OF_RELOAD + 2}
CEILINGS |= {Attempt: 14, ModelRequest: 9, Given: 6, FeatureParts: 8, Feature: 6}
"""The most fields that each may have. A field more of what a feature is given, of what it hangs
into the doors, or of what is known before it begins is a door more: two features need it."""
MOST_GIVEN = 8
"""No feature is ever handed more of a daemon than so many things."""


def names_of(module: Path) -> Iterator[str]:
    """The classes and constants that it defines."""
    for node in tree_of(module).body:
        match node:
            case ast.ClassDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def texts_in(module: Path) -> set[str]:
    """Every text in it."""
    return {str(each.value) for each in nodes_of(module) if isinstance(each, ast.Constant)}


def identifiers_in(module: Path) -> set[str]:
    """Every name and every attribute that it uses or makes."""
    found = set()
    for node in nodes_of(module):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                found.add(name)
            case ast.alias(name=name):
                found.add(name)
    return found


def all_needed_by(modules: Iterable[Path]) -> set[str]:
    """The modules that are imported with these, of hotreload and of its tests."""
    root = PACKAGE.parent
    there = {name_of(each): each for each in (*MODULES, *(root / "tests").rglob("*.py"))}
    needed, left = set[str](), [*map(name_of, modules)]
    while left:
        if (name := left.pop()) not in needed:
            needed.add(name)
            left += modules_imported_by(there[name], there.keys())
    return needed


DEFINED = {
    name for module in OF_FEATURES for name in names_of(module) if not name.startswith("_")
} - {"log"}
SET = {
    str(where[-1])
    for each in FEATURES
    if isinstance(each.settings, type)
    for where in every(each.settings)
}
TOLD = {name for each in FEATURES for name in (*each.reasons, *metrics_of(each))}
HOMONYMS = {
    "keep": "what becomes of the weights from before (KeepPrevious), and a set that the gate keeps",
    "run": "the life of a part, such as Reconciler.run",
    "time": "Python's module",
    "timeout": "asyncio's",
}
"""Words of the kernel that a feature's setting happens to have, too, and what they are there."""


@pytest.mark.parametrize("module", KERNEL, ids=lambda module: module.name)
def test_the_kernel_uses_no_name_that_a_feature_defines(module: Path) -> None:
    used = identifiers_in(module)
    assert used & DEFINED == set()
    assert (used | texts_in(module)) & TOLD == set()
    assert used & SET - HOMONYMS.keys() == set()


def test_each_homonym_is_one() -> None:
    used = {name for module in KERNEL for name in identifiers_in(module)}
    assert HOMONYMS.keys() <= used & SET


@pytest.mark.parametrize("module", OF_FEATURES, ids=lambda m: str(m.relative_to(PACKAGE)))
def test_no_feature_imports_another(module: Path) -> None:
    own = name_of(module).split(".")[:3]
    of_features = [name.split(".") for name in modules_imported_by(module, known_names())]
    others = [name for name in of_features if name[1] == "features" and name[:3] != own]
    assert module.parent == PACKAGE / "features" or others == []


def test_the_tests_of_the_kernel_need_no_feature() -> None:
    """They pass without features, then: tests/integration/test_many.py has a daemon of none."""
    tests = (PACKAGE.parent / "tests" / "core").glob("*.py")
    needed = all_needed_by(tests)
    assert {name for name in needed if name.startswith("hotreload.features")} == set()


def test_no_more_fields_than_today() -> None:
    fields = {each: len(dataclasses.fields(each)) for each in CEILINGS}
    assert fields == CEILINGS, "one that lost a field has a lower ceiling now"


def test_a_feature_is_given_few_things() -> None:
    assert len(dataclasses.fields(Given)) <= MOST_GIVEN


def test_no_field_of_an_attempt_is_a_fact_of_a_judge() -> None:
    facts = {fact for each in (NOT_PROBED, *BLANK) for fact in (each.name, *each.facts)}
    progress = AttemptProgress(Revision("a"), lambda event: None)
    assert facts & {each.name for each in dataclasses.fields(Attempt)} == set()
    assert facts & vars(progress).keys() == set()
