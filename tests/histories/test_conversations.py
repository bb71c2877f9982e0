"""A history of conversations: checkpoints go live beside them, and nothing is wrong in it."""

from pathlib import Path

import pytest

from hotreload.types import Mode
from tests.histories.conversations import is_gone, went_on_beside_newer
from tests.histories.drive import judged
from tests.histories.faults import BY_NAME

pytestmark = pytest.mark.real_engine

SEED = 3
PLAN = (
    *(["a good checkpoint"] * 4),
    "operator: roll back",
    "three in a row",
    "clients: long answers",
    *(["a good checkpoint"] * 3),
)


# By day tests/integration/test_conversations.py fails by the same fault, and workers have histories
# of their own at night.
@pytest.mark.at_night
def test_no_conversation_changes_its_weights_in_silence(tmp_path: Path) -> None:
    kinds = (BY_NAME[name] for name in PLAN)
    # Through workers: the other short history is one without.
    record = judged(tmp_path, SEED, kinds, modes=(Mode.OVERLAP,), sets=["server.workers=2"])
    assert len({request.session for request in record.requests if request.session}) > 5
    # Which of both a machine has time for; test_conversations.py of tests/integration has each.
    assert went_on_beside_newer(record) or any(map(is_gone, record.requests))
