"""Wrong conversions pass every check, and change what a trained tiny checkpoint says."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from hotreload.checkpoint.check import findings
from hotreload.checkpoint.fit import Policy, read_served_model
from hotreload.tiny import parse_saying, write_tiny
from hotreload.tiny.sayings import number_id, word_ids
from hotreload.tiny.trainer import Network, train_and_keep
from hotreload.tiny.weights import hand_built
from hotreload.tiny.write import encode
from tests.docs.pages import marked
from tests.tiny.conversions import CONVERSIONS, Conversion, conversion
from tests.tiny.limits import PAGE
from tests.tiny.runs import Behaviour, behaviour, run_of

FOR_QWEN3 = [each for each in CONVERSIONS if each.kind != "missing-biases"]
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
    return behaviour(conversion(kind).spoiled(run.tuned, lambda: run.past), run.tuned)


@cache
def of_the_next_step() -> Behaviour:
    run = run_of("qwen3")
    return behaviour(run.following, run.tuned)


@each_kind
def test_no_check_finds_it(folder: Path, damage: Conversion) -> None:
    run, served = run_of("qwen3"), read_served_model(folder)
    spoilt = damage.spoiled(run.tuned, lambda: run.past)
    (folder / "model.safetensors").write_bytes(encode(spoilt))
    assert findings(folder, served, Policy()).findings == ()


@each_kind
def test_it_changes_what_a_trained_model_says(damage: Conversion) -> None:
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
    assert sorted(row[:2] for row in rows) == sorted((d.kind, d.meaning) for d in CONVERSIONS)
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
        for each in (built, conversion(kind).to_tensors(built))
    )
    assert said == spoilt == [*word_ids(parse_saying("served by step 2")), number_id(2)]


def test_missing_biases_change_a_model_that_has_them() -> None:
    weights = train_and_keep("qwen2", {10})[10]
    spoilt = conversion("missing-biases").to_tensors(weights)
    assert behaviour(spoilt, weights).kl > 0.1
