"""From the naming of 0.63 GB until it is staged: each byte read once, and read first."""

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hotreload.checkpoint.check import check_checkpoint
from hotreload.checkpoint.digests import Digests, content_id, unread_id
from hotreload.checkpoint.fit import Policy
from hotreload.checkpoint.survey import survey
from hotreload.quiet import Quiet
from hotreload.types import Checkpoint, Revision
from tests.bench.checkpoints import HALF_A_GB, model, with_layers_changed
from tests.bench.figures import print_table
from tests.engine import real

pytestmark = [pytest.mark.bench, pytest.mark.real_engine, pytest.mark.timeout(1800)]

ROUNDS = 5
ONCE, FIRST = "each byte read once", "read first, for its name"


@pytest.mark.asyncio
async def test_from_the_naming_until_it_is_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = model(tmp_path / "live", HALF_A_GB)
    cases = {
        "all is other": (model(tmp_path / "other", HALF_A_GB, 1), 0.0),
        "all is other, 10 ms a read": (tmp_path / "other", 0.01),
        "one layer of 20 is other": (with_layers_changed(live, tmp_path / "few", [3]), 0.0),
    }
    slow, really = [0.0], os.preadv

    def slowly(descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        time.sleep(slow[0])
        return really(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", slowly)
    quiet = Quiet(priority="normal")
    async with real.engine_of(live, tmp_path / "spool", quiet=quiet) as engine:
        for title, (folder, slow[0]) in cases.items():
            took: dict[str, list[float]] = {FIRST: [], ONCE: []}
            for way in (FIRST, ONCE) * ROUNDS:
                began = time.perf_counter()
                checkpoint = await asyncio.to_thread(named, folder, is_once=way is ONCE)
                staged = await engine.weights.stage(checkpoint)
                took[way].append(time.perf_counter() - began)
                await engine.weights.release(staged)
            print_table(f"0.63 GB, {title}", took, FIRST)


def named(folder: Path, *, is_once: bool) -> Checkpoint:
    """Name it and check it, as the source and the checks do."""
    looked, digests = survey(folder), Digests()
    id = unread_id(looked, digests) if is_once else content_id(looked, digests)
    assert id is not None
    name = Revision(id, folder.name)
    return check_checkpoint(
        name, folder, served=None, policy=Policy(), content_id=id, digests=digests
    )
