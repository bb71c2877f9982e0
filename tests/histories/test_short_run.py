"""A short history: some of everything in a shuffled order, and nothing wrong in it."""

import os
import random
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest

from hotreload.types import Mode
from tests.histories.drive import chosen, judged
from tests.histories.faults import BY_NAME, KINDS
from tests.histories.record import Ended
from tests.histories.ways import answered_side_by_side

pytestmark = pytest.mark.real_engine

SEED = int(os.environ.get("HOTRELOAD_SOAK_SEED", "1"))
ALWAYS = (
    "kill -9 at random",
    "SIGTERM, and started again",
    "damaged: truncated",
    "damaged: nan",
    "damaged: gibberish",
    "operator: roll back",
    "operator: reload and roll back",
    "clients: hang up",
    "clients: bad requests",
    "clients: long answers",
)
MILD = [kind for kind in KINDS if kind.name not in ("kill -9 at a step", "slow steps", *ALWAYS[:2])]
MORE = 5


@pytest.mark.parametrize(
    "mode", [Mode.OVERLAP, pytest.param(Mode.DRAIN, marks=pytest.mark.at_night)]
)
def test_whatever_happens_every_answer_is_exactly_what_its_generation_says(
    tmp_path: Path, mode: Mode
) -> None:
    kinds = [*(BY_NAME[name] for name in ALWAYS), *islice(chosen(SEED, MILD), MORE)]
    random.Random(SEED).shuffle(kinds)
    record = judged(tmp_path, SEED, kinds, modes=(mode,))
    assert Counter(life.told for life in record.lives) == {"kill": 1, "stop": 2}
    answered = [each for each in record.requests if each.said and each.ended is Ended.ANSWERED]
    assert len({said.generation for each in answered for said in each.said}) > 3
    assert answered_side_by_side(record) == (mode is Mode.OVERLAP)


def test_a_seed_gives_the_same_plan_again() -> None:
    plans = [[kind.name for kind in islice(chosen(seed), 50)] for seed in (7, 7, 8)]
    assert plans[0] == plans[1] != plans[2]
