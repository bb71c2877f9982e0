"""What a program gives is checked as a whole, or as a part of what is live."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from hotreload.checkpoint.digests import Digests
from hotreload.checkpoint.fingerprint import TensorSum
from hotreload.checkpoint.fit import Policy
from hotreload.errors import BadRequest, CheckpointCorrupt, CheckpointIncompatible
from hotreload.hot.new_weights import GivenChecks
from hotreload.hot.weight_changes import named_upon
from hotreload.types import Revision, Served, TensorSpec

Tensors = dict[str, Any]
WHOLE: Tensors = {
    name: np.random.default_rng(at).normal(size=(4, at + 1)).astype(np.float32)
    for at, name in enumerate(("a.weight", "b.weight", "c.weight"))
}
SERVED = Served(
    {name: TensorSpec(tensor.shape, "F32") for name, tensor in WHOLE.items()},
    {"torch_dtype": "float32"},
    {},
    frozenset({"tied.weight"}),
)
PART = {"b.weight": WHOLE["b.weight"] + 1}


@pytest.fixture
def checks() -> GivenChecks:
    return GivenChecks(SERVED, Policy(extra_tensors=("mtp.*",)), "auto")


def live_sums() -> Mapping[str, int]:
    sums = {}
    for name, tensor in WHOLE.items():
        total = TensorSum()
        total.update(tensor.tobytes())
        sums[name] = total.value
    return sums


def never() -> Mapping[str, int]:
    raise AssertionError("what is live says nothing of a whole set")


async def test_what_lacks_tensors_is_a_part_and_what_has_them_all_is_none(
    checks: GivenChecks,
) -> None:
    part, whole = await checks.check(PART, "step 1"), await checks.check(WHOLE)
    assert (part.is_part, part.revision.label) == (True, "step 1")
    assert (whole.is_part, whole.revision.label) == (False, "the mapping")


async def test_what_no_engine_loads_makes_no_part_where_it_lacks(checks: GivenChecks) -> None:
    tied = checks.against({**SERVED.tensors, "tied.weight": TensorSpec((4, 1), "F32")}, Digests())
    assert not (await tied.check(WHOLE)).is_part


async def test_who_insists_on_all_of_them_hears_which_are_missing(checks: GivenChecks) -> None:
    for ask in (checks.check(PART, complete=True), fingerprint_of(checks, PART, complete=True)):
        with pytest.raises(CheckpointIncompatible, match=r"a\.weight' is missing") as refused:
            await ask
        assert [each.split("'")[1] for each in refused.value.findings] == ["a.weight", "c.weight"]
    assert not (await checks.check(WHOLE, complete=True)).is_part


async def fingerprint_of(checks: GivenChecks, given: Any, *, complete: bool) -> str | None:
    return await checks.fingerprint_of(given, live_sums, complete=complete)


async def test_a_folder_is_always_whole(checks: GivenChecks, tmp_path: Path) -> None:
    save_file(PART, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointIncompatible, match="is missing"):
        await checks.check(tmp_path)


async def test_a_name_that_the_model_does_not_have_is_refused_by_name(checks: GivenChecks) -> None:
    for given in ({"b.wieght": PART["b.weight"]}, {**PART, "b.wieght": PART["b.weight"]}):
        with pytest.raises(CheckpointIncompatible, match=r"'b\.wieght' is not used") as refused:
            await checks.check(given)
        assert refused.value.code == "extra"


@pytest.mark.parametrize("names", [(), ("tied.weight",), ("mtp.head", "tied.weight")])
async def test_what_has_nothing_for_the_model_is_refused(
    checks: GivenChecks, names: tuple[str, ...]
) -> None:
    given = dict.fromkeys(names, WHOLE["a.weight"])
    for ask in (checks.check(given), fingerprint_of(checks, given, complete=False)):
        with pytest.raises(BadRequest, match="no tensor that the model takes"):
            await ask


async def test_a_whole_set_of_zeros_is_refused_though_a_part_may_be(checks: GivenChecks) -> None:
    zeros = {name: np.zeros_like(tensor) for name, tensor in WHOLE.items()}
    with pytest.raises(CheckpointCorrupt, match="every value of every tensor is zero"):
        await checks.check(zeros)
    del zeros["a.weight"]
    assert (await checks.check(zeros)).is_part


async def test_the_fingerprint_of_a_part_is_that_of_the_whole(checks: GivenChecks) -> None:
    whole = await checks.fingerprint_of({**WHOLE, **PART}, never)
    assert await checks.fingerprint_of(PART, live_sums) == whole
    assert whole != await checks.fingerprint_of(WHOLE, never)


async def test_the_same_part_is_another_revision_upon_other_weights(checks: GivenChecks) -> None:
    part = await checks.check(PART, "step 1")
    upon_one, again, upon_two = (named_upon(part, Revision(id)) for id in ("1", "1", "2"))
    assert upon_one == again
    assert len({each.revision.id for each in (part, upon_one, upon_two)}) == 3
    assert upon_one.revision.label == "step 1"
