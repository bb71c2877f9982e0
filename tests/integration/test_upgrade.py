"""New code finds what older code remembered."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotreload.life.saved.state_json import VERSION
from tests.integration.running import Running, words
from tests.words.engine import starting_engines_of_words


@pytest.fixture(autouse=True)
def an_engine_of_words() -> Iterator[None]:
    """What is remembered is the same whatever the engine is."""
    with starting_engines_of_words():
        yield


async def test_an_upgrade_keeps_the_last_good_generation_and_what_was_refused(
    tmp_path: Path,
) -> None:
    running = Running(tmp_path)
    running.drop(1)
    async with running.serving():
        await running.attempted(running.drop(2))
        refused = await running.attempted(running.drop(3, "wrong-shape"))
        before = running.live
    state = tmp_path / "state" / "state.json"
    as_version_1(state)
    running.happened.clear()
    async with running.serving():
        assert (running.live.number, running.live.fingerprint) == (
            before.number,
            before.fingerprint,
        )
        assert (await running.ask())["text"] == words(2)
        assert refused.revision.id in running.daemon.ledger.refused
        assert running.reloads == []
    assert json.loads(state.read_text())["version"] == VERSION


def as_version_1(state: Path) -> None:
    """Write it as the first version did, which knew less."""
    memory = json.loads(state.read_text())
    assert memory["version"] == VERSION
    del memory["lost_at"], memory["numbers_given"], memory["checksum"]
    state.write_text(json.dumps({**memory, "version": 1}))
