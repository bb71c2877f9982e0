"""Wrong conversions pass every check, and change what a trained tiny checkpoint says."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from hotreload.checkpoint.check import findings
from hotreload.checkpoint.fit import Policy, served_by
from hotreload.tiny import ARCHS, FLUENT, Damage, parse_saying, write_tiny
from hotreload.tiny.damage import find_damage
from hotreload.tiny.network import Network
from hotreload.tiny.sayings import number_id, word_ids
from hotreload.tiny.shards import encode
from hotreload.tiny.spoiling import Past
from hotreload.tiny.training import learned
from hotreload.tiny.weights import Arrays, hand_built
from tests.docs.pages import marked
from tests.tiny.limits import PAGE
from tests.tiny.runs import Behaviour, behaviour, run_of

OF_ONE_ARCH = {"missing-head-norms": "qwen3", "missing-biases": "qwen2"}
FOR_QWEN3 = [each for each in FLUENT if OF_ONE_ARCH.get(each.kind, "qwen3") == "qwen3"]
LIKE_A_NEXT_STEP = {
    "wrong-final-norm",
    "missing-final-norm",
    "stale-scales",
    "four-bits",
    "through-fp8",
    "delta-halved",
    "stale-layer",
    "stale-embedding",
    "stale-head",
}
"""Those that change this model no more than some steps of sound training do."""
each_kind = pytest.mark.parametrize("damage", FOR_QWEN3, ids=[each.kind for each in FOR_QWEN3])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("trained") / "a", steps=0)


@cache
def measured(kind: str) -> Behaviour:
    run = run_of("qwen3")
    return behaviour(find_damage(kind).spoiled(run.tuned, lambda: run.past), run.tuned)


@cache
def of_the_next_step() -> Behaviour:
    run = run_of("qwen3")
    return behaviour(run.following, run.tuned)


@each_kind
def test_no_check_finds_it(folder: Path, damage: Damage) -> None:
    run, served = run_of("qwen3"), served_by(folder)
    spoilt = damage.spoiled(run.tuned, lambda: run.past)
    (folder / "model.safetensors").write_bytes(encode(spoilt))
    assert findings(folder, served, Policy()).findings == ()


@each_kind
def test_it_changes_what_a_trained_model_says(damage: Damage) -> None:
    """Most by far more than the next step of training does; for the others see the docs."""
    found, good = measured(damage.kind), of_the_next_step()
    assert good.same_top == 1.0
    assert found.kl > 1e-5
    is_far = found.kl > 5 * good.kl and found.same_top < 1
    assert is_far == (damage.kind not in LIKE_A_NEXT_STEP)


def test_live_weights_differ_in_nothing_from_themselves() -> None:
    tuned = run_of("qwen3").tuned
    assert behaviour(tuned, tuned) == (0.0, 1.0, 1.0)


ROWS = re.compile(r"^\| `?([\w-]+)`? \| (.+) \| (\S+) \| (\S+) \| (\S+) \|$", re.MULTILINE)


def test_the_page_tells_of_each_what_it_does_and_how_much() -> None:
    """Figures move a little with the machine that trains; `missing-biases` is qwen2's."""
    (table,) = marked("damages").findall(PAGE.read_text())
    (none, *_), *rows = [row.groups() for row in ROWS.finditer(table)][1:]
    assert none == "none"
    assert sorted(row[:2] for row in rows) == sorted((d.kind, d.meaning) for d in FLUENT)
    for kind, _, *figures in rows:
        if kind != "missing-biases":
            found = measured(kind)
            assert [float(each) for each in figures] == [
                pytest.approx(found.kl, rel=0.3),
                pytest.approx(found.perplexity_ratio, rel=0.3),
                pytest.approx(found.same_top, abs=0.05),
            ], kind


@pytest.mark.parametrize("kind", ["interleaved-rotary", "swapped-layers", "missing-shard"])
def test_one_built_by_hand_says_the_same_however_wrong_it_is(kind: str) -> None:
    built = hand_built(parse_saying("served by step 2"), "qwen3")
    ids = np.array([[5, 6, 7, *word_ids(parse_saying("served by step 2"))]])
    said, spoilt = (
        Network(each).logits(ids)[0, 2:].argmax(axis=-1).tolist()
        for each in (built, find_damage(kind).to_tensors(built))
    )
    assert said == spoilt == [*word_ids(parse_saying("served by step 2")), number_id(2)]


@cache
def before_training(arch: str) -> tuple[Arrays, Past]:
    """Weights of that architecture, and others in the place of those before."""
    weights = learned(arch, {0})[0]
    older = {n: (t.astype(np.float32) * 0.5).astype(t.dtype) for n, t in weights.items()}
    return weights, Past(older, older)


@pytest.mark.parametrize("damage", FLUENT, ids=[each.kind for each in FLUENT])
def test_it_can_be_done_to_each_architecture_that_has_the_tensors(damage: Damage) -> None:
    archs = [OF_ONE_ARCH[damage.kind]] if damage.kind in OF_ONE_ARCH else ARCHS
    for arch in archs:
        weights, past = before_training(arch)
        spoilt = damage.from_past(weights, past) if damage.from_past else damage.to_tensors(weights)
        assert spoilt.keys() == weights.keys()
        assert any(spoilt[n].tobytes() != t.tobytes() for n, t in weights.items())
        for name, tensor in spoilt.items():
            assert (tensor.shape, tensor.dtype) == (weights[name].shape, weights[name].dtype)
            assert np.isfinite(tensor.astype(np.float32)).all(), name


@pytest.mark.parametrize(
    ("kind", "arch"), [("missing-head-norms", "llama"), ("missing-biases", "qwen3")]
)
def test_what_an_architecture_lacks_cannot_go_missing(tmp_path: Path, kind: str, arch: str) -> None:
    with pytest.raises(ValueError, match="choose another architecture"):
        write_tiny(tmp_path / "a", arch=arch, damage=kind)


def test_missing_biases_change_a_model_that_has_them() -> None:
    weights = learned("qwen2", {10})[10]
    spoilt = find_damage("missing-biases").to_tensors(weights)
    assert behaviour(spoilt, weights).kl > 0.1


def test_one_built_by_hand_is_tuned_from_others_that_say_something(tmp_path: Path) -> None:
    spoilt = write_tiny(tmp_path / "a", "served by step 2", damage="base-for-tuned")
    base = write_tiny(tmp_path / "b", "hello from step 0")
    assert (spoilt / "model.safetensors").read_bytes() == (base / "model.safetensors").read_bytes()
