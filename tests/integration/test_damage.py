"""Every damage is refused or rolled back with its own reason, and clients see only old answers."""

from pathlib import Path

import pytest

from hotreload.tiny import UNSOUND
from hotreload.types import Outcome
from tests.integration.running import PROMPTS, Load, Running, mixed, one_daemon, one_daemon_marks

pytestmark = one_daemon_marks()

REASONS = {
    "truncated": "truncated",
    "missing-tensor": "missing",
    "extra-tensor": "extra",
    "wrong-shape": "shape",
    "wrong-dtype": "dtype",
    "nan": "nonfinite",
    "inf": "nonfinite",
    "zeros": "zeros",
    "gibberish": "probe",
    "bad-index": "index",
    "traversal": "index",
    "duplicate-key": "duplicate",
}


running = one_daemon()


async def test_every_damage_has_its_reason() -> None:
    assert {damage.kind for damage in UNSOUND} == set(REASONS)


@pytest.mark.parametrize(("damage", "code"), REASONS.items())
async def test_damage_is_refused_while_clients_see_only_old_answers(
    running: Running, damage: str, code: str
) -> None:
    live, number = running.live, 10 + list(REASONS).index(damage)
    before = [await running.ask(prompt) for prompt in PROMPTS]
    async with Load(running, 4).on() as load:
        attempt = await running.attempted(running.drop(number, damage))
    after = [await running.ask(prompt) for prompt in PROMPTS]
    assert attempt.outcome is Outcome.REJECTED
    assert attempt.reason is not None
    assert attempt.reason.code == code
    assert (attempt.rolled_back, attempt.pause_seconds) == (False, 0.0)
    assert running.live == live
    assert load.failures == []
    assert mixed(load.answers, running.generations) == []
    assert [(a["text"], a["output_ids"]) for a in after] == [
        (b["text"], b["output_ids"]) for b in before
    ]


async def test_a_good_checkpoint_after_all_that_goes_live(running: Running) -> None:
    attempt = await running.attempted(running.drop(99))
    assert attempt.outcome is Outcome.LIVE
    assert (await running.ask())["text"] == "served by step 99"


async def test_nan_that_reaches_the_probe_leaves_no_trace_in_later_answers(
    tmp_path: Path,
) -> None:
    """With the content check switched off the probe meets the NaN; drained, in the KV pool of all.

    By overlap they meet in a pool of their own: test_unproven.py.
    """
    running = Running(tmp_path, "checks.nonfinite=allow", "reload.mode=drain")
    running.drop(1)
    async with running.serving():
        before = [await running.ask(prompt) for prompt in PROMPTS]
        for number, damage in ((2, "nan"), (3, "inf")):
            attempt = await running.attempted(running.drop(number, damage))
            assert attempt.rolled_back
            assert attempt.reason is not None
            assert attempt.reason.code == "probe"
            after = [await running.ask(prompt) for prompt in PROMPTS]
            assert [(a["text"], a["output_ids"]) for a in after] == [
                (b["text"], b["output_ids"]) for b in before
            ]
