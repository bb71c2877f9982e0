"""New code finds what older code remembered."""

import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from hotreload.events import RevisionWanted
from hotreload.life.saved.state_json import VERSION
from hotreload.types import Outcome
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


async def test_a_restart_knows_what_was_read_before_and_reads_none_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Running(tmp_path, "source.settle=0.3")
    running.drop(1)
    async with running.serving():
        await running.attempted(running.drop(2))
        refused = await running.attempted(running.drop(3, "gibberish"))
        assert (refused.outcome, refused.revision.is_unread) == (Outcome.REJECTED, False)
    read = Counter[str]()
    real = os.preadv

    def counted(descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        count = real(descriptor, buffers, offset)
        read[Path(os.readlink(f"/proc/self/fd/{descriptor}")).parent.name] += count
        return count

    monkeypatch.setattr(os, "preadv", counted)
    running.happened.clear()
    async with running.serving():
        await running.until(lambda: any(isinstance(e, RevisionWanted) for e in running.happened))
        (newest,) = running.daemon.source.list_ids()[:1]
        assert (newest, running.reloads) == (refused.revision.id, [])
        assert (await running.ask())["text"] == words(2)
    assert read[refused.revision.label] < MOST_ITEMS_CHECKED < read["step_2"]


MOST_ITEMS_CHECKED = 500_000
"""Bytes of a tiny checkpoint's headers and side files, read several times, and of no weights."""


def as_version_1(state: Path) -> None:
    """Write it as the first version did, which knew less."""
    memory = json.loads(state.read_text())
    assert memory["version"] == VERSION
    del memory["lost_at"], memory["numbers_given"], memory["checksum"]
    state.write_text(json.dumps({**memory, "version": 1}))
