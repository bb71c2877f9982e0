"""A program's names of its tensors become those of the Hugging Face Hub."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotreload.checkpoint.arrangement import as_in_a_file, of_stack
from hotreload.checkpoint.in_memory import InMemory
from hotreload.errors import BadRequest
from hotreload.hot.names import rename

TABLE = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight"}


@pytest.mark.parametrize("names", [TABLE, TABLE.get, TABLE.__getitem__])
def test_a_table_does_as_well_as_what_looks_a_name_up(names: Any) -> None:
    assert rename({"norm": 1, "embed": 2}, names) == {TABLE["norm"]: 1, TABLE["embed"]: 2}


def test_without_names_nothing_is_touched() -> None:
    given = {"norm": 1}
    assert rename(given, None) is given


@pytest.mark.parametrize("names", [TABLE, TABLE.get, TABLE.__getitem__, lambda name: 7])
def test_a_name_that_is_unknown_is_refused_by_name(names: Any) -> None:
    with pytest.raises(BadRequest, match="names does not know 'nrom', 'head'") as refused:
        rename({"nrom": 1, "head": 2}, names)
    assert refused.value.findings == ("'nrom'", "'head'")


def test_of_many_unknown_names_the_first_are_shown() -> None:
    with pytest.raises(BadRequest, match=r"'t9' and 5 more$"):
        rename({f"t{at}": at for at in range(15)}, TABLE)


def test_two_names_of_one_tensor_are_refused() -> None:
    with pytest.raises(BadRequest, match="the same as 'b'"):
        rename({"a": 1, "b": 2}, lambda name: "model.norm.weight")


@pytest.mark.parametrize(
    ("given", "names", "words"),
    [
        (Path("step_1"), TABLE, "for a mapping of arrays"),
        ({"norm": 1}, ["norm"], r"a table or a callable, not \['norm'\]"),
    ],
)
def test_what_is_no_use_of_names_is_refused(given: Any, names: Any, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        rename(given, names)


class Variable:
    """Like one of flax's."""

    def __init__(self, value: Any) -> None:
        self.get_raw_value = lambda: value


def test_names_in_a_tree_are_its_keys_joined_by_dots() -> None:
    tree = {"layers": {0: {"norm": Variable(1)}, "1": {"norm": 2}}, "head": 3}
    given = rename(tree, lambda name: f"model.{name}")
    assert given == {"model.layers.0.norm": 1, "model.layers.1.norm": 2, "model.head": 3}


def test_a_name_may_come_with_the_arrangement_of_the_axes() -> None:
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    given: Any = rename({"q": array}, {"q": ("q_proj", "d n h -> (n h) d")})
    memory = InMemory(given)
    wanted = np.einsum("dnh->nhd", array).reshape(12, 2)
    assert memory.header.rstrip().endswith(b'"shape": [12, 2], "data_offsets": [0, 96]}}')
    read = bytearray(96)
    memory.open().read_into(memoryview(read), memory.begins[0])
    assert read == wanted.tobytes()


@pytest.mark.parametrize(
    "spelt", ["d n", "d n -> n", "d d -> d d", "d n -> (n d", "D n -> n D", "d n -> n (d) x"]
)
def test_what_is_no_arrangement_is_refused(spelt: str) -> None:
    with pytest.raises(BadRequest, match="is no arrangement of axes"):
        rename({"q": np.zeros((2, 3))}, {"q": ("q_proj", spelt)})


@pytest.mark.parametrize("array", [np.zeros(3), 7])
def test_an_array_that_has_other_axes_is_refused_by_name(array: Any) -> None:
    with pytest.raises(BadRequest, match=r"'q' is \(.*\), and is to be arranged by 'd n -> n d'"):
        rename({"q": array}, {"q": ("q_proj", "d n -> n d")})


@pytest.mark.parametrize("pair", [("q",), ("q", "a -> a", "b"), ("q", 7)])
def test_what_is_neither_a_name_nor_one_with_an_arrangement_is_refused(pair: Any) -> None:
    with pytest.raises(BadRequest, match="names does not know 'q'"):
        rename({"q": 1}, {"q": pair})


def test_one_array_may_stack_many_tensors() -> None:
    stack = np.arange(24).reshape(2, 3, 4)
    name = "layers.{layer}.experts.{expert}.w"
    given: Any = rename({"w": stack}, {"w": (name, "layer expert d -> d")})
    assert list(given)[:2] == ["layers.0.experts.0.w", "layers.0.experts.1.w"]
    assert {given[each].shape for each in given} == {(4,)}
    last = given["layers.1.experts.2.w"]
    assert as_in_a_file(last, of_stack(last, stack)).tolist() == [20, 21, 22, 23]


def test_an_arrangement_may_have_a_form_for_each_number_of_axes() -> None:
    names = {"k": ("w", "i o -> o i | d n h -> (n h) d")}
    for shape, wanted in (((2, 3), (3, 2)), ((2, 3, 4), (12, 2))):
        given: Any = rename({"k": np.zeros(shape)}, names)
        assert given["w"].shape == wanted
    with pytest.raises(BadRequest, match=r"'k' is \(2,\), and is to be arranged by"):
        rename({"k": np.zeros(2)}, names)


def test_an_axis_may_be_parted_by_its_length() -> None:
    pairs = np.arange(8, dtype=np.int32)
    given: Any = rename({"a": pairs}, {"a": ("b", "(h 2) -> (2 h)")})
    assert as_in_a_file(given["b"], pairs).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    with pytest.raises(BadRequest, match=r"'a' is \(7,\)"):
        rename({"a": np.zeros(7)}, {"a": ("b", "(h 2) -> (2 h)")})


@pytest.mark.parametrize("name", ["w", "layers.{expert}.w", "layers.{layer}.{expert}.w"])
def test_a_name_says_along_which_axes_tensors_are_stacked(name: str) -> None:
    with pytest.raises(BadRequest, match=r"stacked their name has \{layer\} in it"):
        rename({"w": np.zeros((2, 2))}, {"w": (name, "layer d -> d")})


@pytest.mark.parametrize("factor", [0, float("nan"), True, "2"])
def test_a_factor_that_is_none_is_refused(factor: Any) -> None:
    with pytest.raises(BadRequest, match="names does not know 'w'"):
        rename({"w": np.zeros(2)}, {"w": ("w", "d -> d", factor)})


def test_a_factor_may_depend_on_the_shape() -> None:
    given: Any = rename({"w": np.ones((2, 3))}, {"w": ("w", "a b -> b a", lambda s: s[1])})
    assert np.array_equal(as_in_a_file(given["w"], np.ones((2, 3))), np.full((3, 2), 3.0))


def test_two_arrays_that_come_to_the_same_tensor_are_refused() -> None:
    names: Any = {"all": ("layers.{layer}.w", "layer d -> d"), "one": "layers.1.w"}
    with pytest.raises(BadRequest, match="names calls 'all' the same as 'one'"):
        rename({"all": np.zeros((2, 2)), "one": np.zeros(2)}, names)


def test_lists_in_a_tree_are_numbered() -> None:
    given = rename({"layers": [{"w": 1}, {"w": 2}], "more": (3,)}, lambda name: name)
    assert given == {"layers.0.w": 1, "layers.1.w": 2, "more.0": 3}
