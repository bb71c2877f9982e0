"""A daemon changes weights and serves every document, whichever features there are.

tests/test_deletion.py runs it where one of them was deleted.
"""

from pathlib import Path

from hotreload.types import Outcome
from tests.integration.running import Running, post, words
from tests.words.engine import starting_engines_of_words

DOCUMENTS = ("status", "history", "checkpoints", "leaves", "metrics", "openapi.json")


async def test_weights_change_and_every_document_is_served(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.drop(1)
    with starting_engines_of_words():
        async with running.serving(), running.client() as client:
            assert (await running.attempted(running.drop(2))).outcome is Outcome.LIVE
            refused = await running.attempted(running.drop(3, "truncated"))
            assert refused.outcome is Outcome.REJECTED
            assert (await running.ask())["text"] == words(2)
            assert (await post(running, "rollback")).json()["label"] == "step_1"
            assert (await running.ask())["text"] == words(1)
            assert (await client.get("/gate")).json()["verdict"] == "rolled_back"
            answers = [await client.get(f"/{each}") for each in DOCUMENTS]
            assert [each.status_code for each in answers] == [200] * len(DOCUMENTS)
    assert running.exit_code == 0
