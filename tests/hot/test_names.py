"""A program's names of its tensors become those of the Hugging Face Hub."""

from pathlib import Path
from typing import Any

import pytest

from hotreload.errors import BadRequest
from hotreload.hot.names import renamed

TABLE = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight"}


@pytest.mark.parametrize("names", [TABLE, TABLE.get, TABLE.__getitem__])
def test_a_table_does_as_well_as_what_looks_a_name_up(names: Any) -> None:
    assert renamed({"norm": 1, "embed": 2}, names) == {TABLE["norm"]: 1, TABLE["embed"]: 2}


def test_without_names_nothing_is_touched() -> None:
    given = {"norm": 1}
    assert renamed(given, None) is given


@pytest.mark.parametrize("names", [TABLE, TABLE.get, TABLE.__getitem__, lambda name: 7])
def test_a_name_that_is_unknown_is_refused_by_name(names: Any) -> None:
    with pytest.raises(BadRequest, match="names does not know 'nrom', 'head'") as refused:
        renamed({"nrom": 1, "head": 2}, names)
    assert refused.value.findings == ("'nrom'", "'head'")


def test_of_many_unknown_names_the_first_are_shown() -> None:
    with pytest.raises(BadRequest, match=r"'t9' and 5 more$"):
        renamed({f"t{at}": at for at in range(15)}, TABLE)


def test_two_names_of_one_tensor_are_refused() -> None:
    with pytest.raises(BadRequest, match="the same as 'b'"):
        renamed({"a": 1, "b": 2}, lambda name: "model.norm.weight")


@pytest.mark.parametrize(
    ("given", "names", "words"),
    [
        (Path("step_1"), TABLE, "for a mapping of arrays"),
        ({"norm": 1}, ["norm"], r"a table or a callable, not \['norm'\]"),
    ],
)
def test_what_is_no_use_of_names_is_refused(given: Any, names: Any, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        renamed(given, names)
