"""`hotreload ls`: what the source sees, and why each of it is not live."""

import json
import time

import pytest

from hotreload.cli.client.look import listing_text, notes
from hotreload.cli.client.show import now
from hotreload.events import SourceScanned
from hotreload.facts.listed import Listed, ListedState
from hotreload.types import Reason, Revision
from tests.cli.conftest import Command
from tests.server.world import FIRST, SECOND, World

THIRD = Revision("cccc3333", "step-3")
NAN = Reason("nonfinite", "tensor 'lm_head' holds NaN")


@pytest.fixture
def seen(world: World) -> World:
    """Generation 2 is live, and the source sees newer ones and older ones."""
    for each in (FIRST, SECOND):
        world.view.ledger.went_live(each, f"/run/{each.revision.label}")
    world.view.ledger.refuse(THIRD, NAN, time.time())
    hour_ago = time.time() - 3601
    world.view.listed += [
        Listed("step-4", ListedState.WAITING, "2 of 4 shards", step=(0, 4), bytes=5),
        Listed("step-3", ListedState.NEWEST, revision=THIRD, step=(1, 3), written_at=hour_ago),
        Listed("step-2", ListedState.OLDER, revision=SECOND.revision, bytes=3 * 2**30),
        Listed("step-1", ListedState.OLDER, "older than step-3", revision=FIRST.revision),
        Listed("step-\x1b[31m0", ListedState.OLDER, "older than step-3"),
        Listed("notes", ListedState.ODD, "holds no *.safetensors", "missing"),
    ]
    world.events.publish(SourceScanned("rescan"))
    return world


async def test_ls_is_a_table_that_says_of_each_why_it_is_not_live(
    seen: World, hotreload: Command
) -> None:
    said = await hotreload("ls")
    assert (said.code, said.err) == (0, "")
    head, *rows = said.out.splitlines()
    assert head.split() == ["CHECKPOINT", "STEP", "SIZE", "WRITTEN", "STATE", "WHY"]
    cells = [[cell.strip() for cell in row.split("  ") if cell] for row in rows]
    assert cells[0] == ["step-4", "4", "5 B", "-", "waiting", "2 of 4 shards"]
    assert cells[1][1:] == [
        "1/3",
        "-",
        "1 h ago",
        "refused",
        "nonfinite: tensor 'lm_head' holds NaN",
    ]
    assert cells[2][2:5] == ["3.2 GB", "-", "live"]
    assert cells[2][5].startswith("generation 2, went live ")
    assert cells[3][4:] == ["previous", "was generation 1"]
    assert cells[4] == ["step-\\x1b[31m0", "-", "-", "-", "older", "older than step-3"]
    assert cells[5][-2:] == ["not a checkpoint", "holds no *.safetensors"]


async def test_ls_as_json_is_what_the_daemon_says(seen: World, hotreload: Command) -> None:
    said = json.loads((await hotreload("ls", "-n", "1", "--json")).out)
    assert said == await seen.view.documents.checkpoints.snapshot(1)
    assert [row["state"] for row in said["checkpoints"]] == ["waiting", "live", "previous"]


async def test_what_is_not_in_the_table_is_counted_beside_it(
    seen: World, hotreload: Command
) -> None:
    said = await hotreload("ls", "-n", "1")
    assert len(said.out.splitlines()) == 4
    counts = "1 refused, 1 older, 1 not a checkpoint"
    assert said.err == f"and 3 more: {counts}; -n shows more of them\n"


@pytest.mark.parametrize(
    ("looked", "error", "words"),
    [
        (None, None, "the source has not looked yet"),
        ("2023-11-14T22:13:20.000Z", None, "the source sees no checkpoint"),
        (None, "no such folder", "the source cannot look: no such folder; it saw nothing yet"),
        ("2023-11-14T22:13:20.000Z", "EIO", "the source cannot look: EIO; what it saw "),
    ],
)
def test_an_empty_listing_says_why_it_is_empty(
    looked: str | None, error: str | None, words: str
) -> None:
    said = {"checkpoints": [], "total": 0, "states": {}, "looked_at": looked, "error": error}
    (line,) = notes(said, now())
    assert line.startswith(words)


def test_thousands_of_folders_are_written_in_a_moment() -> None:
    row = {
        "name": "step_1",
        "state": "older",
        "why": "older than step_2",
        **dict.fromkeys(("code", "since", "generation", "step", "epoch", "bytes", "written_at")),
    }
    assert len(listing_text([row] * 10_000, now()).splitlines()) == 10_001


@pytest.mark.parametrize("count", ["0", "-3", "10001", "x"])
async def test_how_many_is_a_count_within_bounds(hotreload: Command, count: str) -> None:
    said = await hotreload("ls", "-n", count)
    assert said.code == 2
    assert "10000" in said.err or "no whole number" in said.err
