"""The kernel changes weights and lets requests in; it knows none of the features beside it.

Each list and each ceiling here may only shrink.
"""

import ast
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotreload.core.progress import AttemptProgress
from hotreload.core.rules import Rules
from hotreload.feature import Feature
from hotreload.parts import FeatureParts, Given
from hotreload.server.asking import Inquiry
from hotreload.types import NOT_PROBED, Attempt, Revision
from tests.evidence import BLANK
from tests.source import MODULES, PACKAGE, nodes_of, tree_of

KERNEL = [module for module in MODULES if module.is_relative_to(PACKAGE / "core")]
FEATURES = [module for module in MODULES if module.is_relative_to(PACKAGE / "features")]
CEILINGS = {Attempt: 14, Rules: 12, Inquiry: 7, Given: 6, FeatureParts: 8, Feature: 5}
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


OF_EACH_FEATURE = {
    name for module in FEATURES for name in names_of(module) if not name.startswith("_")
} - {"log"}


@pytest.mark.parametrize("module", KERNEL, ids=lambda module: module.name)
def test_the_kernel_uses_no_name_that_a_feature_defines(module: Path) -> None:
    assert identifiers_in(module) & OF_EACH_FEATURE == set()


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
