"""Commits of a hub on their way to the clients: how often they are read, and what else counts."""

import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hotreload.attempts import Attempt
from hotreload.checkpoint import first_read
from hotreload.checkpoint.digests import content_id
from hotreload.checkpoint.survey import survey
from hotreload.events import Progress
from hotreload.types import UNREAD, Checkpoint, Outcome, Phase, Staged
from tests.hub.local_hub import local_hub
from tests.integration.from_hub import LABEL, FromHub
from tests.integration.running import Load, one_daemon_marks, post
from tests.integration.test_files_under_us import Harm, rewrite_in_place, truncate

pytestmark = one_daemon_marks()

HEADS = 40_000
"""Bytes of a shard's header, which is read more than once."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FromHub]:
    """A daemon without a model of its own: the first commit is the model."""
    with local_hub() as hub:
        running = FromHub(tmp_path_factory.mktemp("daemon"), hub)
        running.push(1)
        async with running.serving():
            yield running
        assert running.exit_code == 0


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The bytes that were read of the weights of each commit, also while it was downloaded."""
    real, read = os.preadv, dict[str, int]()

    def counted(descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        count = real(descriptor, buffers, offset)
        file = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if file.suffix == ".safetensors":
            sha = file.parent.name.removeprefix(".partial-")
            read[sha] = read.get(sha, 0) + count
        return count

    monkeypatch.setattr(os, "preadv", counted)
    return read


def folder_of(running: FromHub, sha: str) -> Path:
    return running.folder / "state/hub/org--name" / sha


def is_once(running: FromHub, sha: str, read: dict[str, int]) -> bool:
    size = (folder_of(running, sha) / "model.safetensors").stat().st_size
    return size <= read[sha] <= size + HEADS


async def attempted(running: FromHub, sha: str) -> Attempt:
    """The last attempt at a commit, once there was any."""
    await running.until(lambda: any(each.revision.id == sha for each in running.attempts))
    return next(each for each in running.attempts[::-1] if each.revision.id == sha)


async def test_it_follows_pushes_under_load_without_a_failed_or_mixed_answer(
    running: FromHub, read: dict[str, int]
) -> None:
    hub, first = running.hub, running.live.revision.id
    assert running.live.revision.label == LABEL
    async with Load(running, 8).on() as load:
        shas = [first]
        for number in (2, 3, 4):
            shas.append(running.push(number))
            await running.lives(shas[-1])
        hub.point("main", shas[1])  # an older one published again is the head
        await running.lives(shas[1])
    last = await running.ask()  # who was inside at the flip was answered by the one before
    assert load.failures == []
    assert running.mixed(load.answers) == []
    assert {number for number, _ in load.answers} >= {1, 2, 3, 4}
    assert last["meta_info"]["generation"] == 5
    assert any(isinstance(event, Progress) for event in running.happened)
    # Each was read once, by whoever staged it, though the hub's digests were held against it.
    assert [is_once(running, sha, read) for sha in shas[2:]] == [True, True]
    # The last fetch deleted what was neither live then, nor before that, nor wanted.
    left = {path.name for path in (running.folder / "state/hub/org--name").iterdir()}
    assert left - {".head-main", ".lock"} == {shas[1], shas[2], shas[3]}


async def test_a_commit_is_named_by_a_stat_until_it_was_staged(
    running: FromHub, monkeypatch: pytest.MonkeyPatch, read: dict[str, int]
) -> None:
    stage, content_of, known = (
        running.engine.weights.stage,
        running.daemon.source.content_of,
        list[str](),
    )

    async def look_and_stage(checkpoint: Checkpoint) -> Staged:
        known.append(content_of(checkpoint.revision))
        return await stage(checkpoint)

    monkeypatch.setattr(running.engine.weights, "stage", look_and_stage)
    sha = running.push(10)
    await running.lives(sha)
    assert is_once(running, sha, read)
    assert [each.startswith(UNREAD) for each in known] == [True]
    assert content_of(running.live.revision) == content_id(survey(folder_of(running, sha)))
    history = await running.document("/history")
    assert {each["revision"] for each in history["attempts"]} >= {sha}
    assert UNREAD not in str(history) + str(await running.status())


@pytest.mark.parametrize("beginning", [first_read.FIRST_BYTES, 0])
async def test_what_is_wrong_with_values_is_found_in_that_reading(
    running: FromHub, read: dict[str, int], monkeypatch: pytest.MonkeyPatch, beginning: int
) -> None:
    """In the beginning before there is room for the rest; else while it is staged."""
    monkeypatch.setattr(first_read, "FIRST_BYTES", beginning)
    sha = running.push(11 if beginning else 31, "nan")
    attempt = await attempted(running, sha)
    assert (attempt.outcome, attempt.reason and attempt.reason.code) == (
        Outcome.REJECTED,
        "nonfinite",
    )
    assert (Phase.STAGING in attempt.phases) is (beginning == 0)
    assert is_once(running, sha, read)
    assert sha in running.daemon.ledger.refused


@pytest.mark.parametrize("is_here", [True, False])
async def test_what_is_live_already_goes_live_as_another_commit_and_is_shared(
    running: FromHub, read: dict[str, int], is_here: bool
) -> None:
    before = running.push(12 + is_here)
    await running.lives(before)
    old = running.live
    if not is_here:
        forget(folder_of(running, before))
    sha = running.push(12 + is_here)
    await running.lives(sha)
    loading = (await attempted(running, sha)).loading
    assert loading is not None
    assert (loading.leaves_staged, loading.leaves_shared) == (0, len(old.leaves))
    assert running.live.fingerprint == old.fingerprint
    assert is_once(running, sha, read), "linked or downloaded: read once, to know that it is equal"


@pytest.mark.parametrize("is_here", [True, False])
async def test_what_was_refused_is_refused_as_another_commit_without_a_probe(
    running: FromHub, is_here: bool
) -> None:
    good, bad = running.push(14), running.push(15 + is_here)
    await running.lives(bad)
    assert (await post(running, "rollback", hold=False)).is_success
    await running.until(lambda: running.live.revision.id != bad)
    live = running.live
    if not is_here:
        forget(folder_of(running, bad))
    again = running.push(15 + is_here)
    attempt = await attempted(running, again)
    assert attempt.outcome is Outcome.REJECTED
    assert attempt.reason is not None
    assert attempt.reason.code == "rolled_back"
    assert attempt.reason.message.startswith(f"the same files were refused as {LABEL} ({bad[:12]})")
    assert (Phase.STAGING in attempt.phases, Phase.PROBING in attempt.phases) == (
        not is_here,
        False,
    )
    assert running.live == live
    assert {bad, again} <= set(running.daemon.ledger.refused)
    answer = await post(running, "reload_weights", revision=again, force=True)
    assert answer.json()["outcome"] == "live", answer.text
    assert good != bad


def forget(folder: Path) -> None:
    """Have no other commit linked to what lies there."""
    (folder / ".snapshot.json").unlink()


@pytest.mark.parametrize("harm", [rewrite_in_place, truncate])
async def test_what_is_written_to_a_snapshot_is_put_off_and_downloaded_again(
    running: FromHub, monkeypatch: pytest.MonkeyPatch, harm: Harm
) -> None:
    """Also where the old times are put back: a stat tells of that, too."""
    stage, harmed = running.engine.weights.stage, list[Path]()

    async def harm_and_stage(checkpoint: Checkpoint) -> Staged:
        if not harmed:
            harmed.append(checkpoint.path / "model.safetensors")
            harm(harmed[0])
        return await stage(checkpoint)

    monkeypatch.setattr(running.engine.weights, "stage", harm_and_stage)
    number = 20 + (harm is truncate)
    came = running.hub.count("/cdn/")
    sha = running.push(number)
    await running.lives(sha)
    first = next(each for each in running.attempts if each.revision.id == sha)
    assert (first.outcome, first.reason and first.reason.code) == (Outcome.POSTPONED, "changed")
    assert running.hub.count("/cdn/") == came + 2
    assert (await running.ask())["text"] == running.says[sha]
    assert harmed[0].read_bytes() == running.hub.commits["org/name"][sha]["model.safetensors"]
