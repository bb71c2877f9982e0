"""What becomes of the files of a checkpoint, live or being staged, never becomes an answer."""

import itertools
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from safetensors.numpy import load_file, save_file

from hotreload import threads
from hotreload.attempts import Attempt
from hotreload.checkpoint import file_reader, first_read
from hotreload.checkpoint import survey as files
from hotreload.checkpoint.check import check_checkpoint
from hotreload.checkpoint.digests import content_id
from hotreload.checkpoint.file_reader import HashedPieces, Identity, OpenFile
from hotreload.checkpoint.fit import Policy
from hotreload.engine.weights.load import own
from hotreload.engine.weights.load.loaders import Loaders
from hotreload.errors import CheckpointRejected
from hotreload.events import Event, SourceScanned
from hotreload.tiny import write_tiny
from hotreload.types import UNREAD, Checkpoint, Outcome, Phase, Staged
from tests.integration.running import (
    PROMPTS,
    Load,
    Running,
    mixed,
    one_daemon,
    one_daemon_marks,
    post,
    words,
)

pytestmark = one_daemon_marks()


running = one_daemon("source.rescan=0.5", "source.settle=0.3")


# --- what can be done to files ---------------------------------------------------------------


def rewrite_in_place(file: Path) -> None:
    """Other bytes, of the same length, in the same inode, and the old times put back."""
    before = file.stat()
    with file.open("r+b") as out:
        out.seek(before.st_size // 2)
        out.write(bytes(each ^ 0x55 for each in file.read_bytes()[before.st_size // 2 :]))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 3)


def delete(file: Path) -> None:
    file.unlink()


def replace_by_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def replace_by_another(file: Path) -> None:
    """By that of another checkpoint, sound but for a NaN and of the same size."""
    other = file.parent.parent.parent / "elsewhere"
    shutil.copyfile(other / file.name, file.parent / ".new")
    (file.parent / ".new").rename(file)


Harm = Callable[[Path], None]
HARMS: list[Harm] = [rewrite_in_place, truncate, delete, replace_by_fifo]
NEWER = itertools.count(40)
"""Each checkpoint is newer than all before it, or the source would not want it."""
LOOKED_AT_AGAIN = 200_000
"""Bytes of headers and side files, which are read more than twice."""
OLDER = itertools.count(10)
"""The source wants none of these, nor what harm makes of them: a wish for that would end the
attempt before it has come as far as the harm."""


def of_weights(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


@pytest.fixture(autouse=True, scope="module")
def _elsewhere(running: Running) -> None:
    write_tiny(running.folder / "elsewhere", words(99), shards=2, damage="nan")


# --- the live one ----------------------------------------------------------------------------


async def what_it_says(running: Running) -> list[Any]:
    answers = [await running.ask(prompt) for prompt in PROMPTS]
    return [(answer["text"], answer["output_ids"]) for answer in answers]


def looks_of(running: Running) -> int:
    return sum(isinstance(event, SourceScanned) for event in running.happened)


@pytest.mark.parametrize("harm", HARMS)
async def test_what_is_done_to_the_live_files_changes_no_answer(
    running: Running, harm: Harm
) -> None:
    number = next(NEWER)
    folder = running.drop(number, shards=2)
    assert (await running.attempted(folder)).outcome is Outcome.LIVE
    before, sums = await what_it_says(running), await running.engine.weights.checksums()
    assert before[0][0] == words(number)
    live = running.live
    for file in of_weights(folder):
        harm(file)
    looks = looks_of(running)
    await running.until(lambda: looks_of(running) >= looks + 2)  # the second began after the harm
    await running.ask("a prompt that no cache has seen before")
    assert await what_it_says(running) == before
    assert await running.engine.weights.checksums() == sums
    assert running.live == live


async def test_the_folder_it_booted_from_may_go_altogether(running: Running) -> None:
    before = await what_it_says(running)
    shutil.rmtree(running.checkpoints / "step_1")
    assert await what_it_says(running) == before


# --- the one that is being staged ------------------------------------------------------------


class Staging:
    """Does harm to a checkpoint in the midst of its staging, and tells how that ended."""

    def __init__(self, running: Running, patch: pytest.MonkeyPatch) -> None:
        self.running, self.patch = running, patch
        self.harmed: list[Path] = []

    def before_it_is_read(self, harm: Harm) -> None:
        engine = self.running.engine
        real = engine.weights.stage

        async def stage(checkpoint: Checkpoint) -> Staged:
            self._do(harm, checkpoint.path)
            return await real(checkpoint)

        self.patch.setattr(engine.weights, "stage", stage)

    def while_it_is_read(self, harm: Harm) -> None:
        """After the third piece of the first tensor that has so many."""
        staging = self

        class Harming(HashedPieces):
            def __init__(self, file: OpenFile, *rest: Any) -> None:
                super().__init__(file, *rest)
                self.path = file.path

            def into(self, memory: memoryview, begin: int) -> Iterator[memoryview]:
                for number, piece in enumerate(super().into(memory, begin)):
                    if not staging.harmed and number == 2:
                        staging._do(harm, self.path.parent)
                    yield piece

        self.patch.setattr(own, "PIECE", 4096)
        self.patch.setattr(own, "HashedPieces", Harming)

    def _do(self, harm: Harm, folder: Path) -> None:
        for file in of_weights(folder):
            harm(file)
            self.harmed.append(file)

    async def ended(self, number: int) -> Attempt:
        folder = self.running.drop(number, shards=2)
        await post(self.running, "reload_weights", model_path=folder.name)
        return next(a for a in self.running.attempts if a.revision.label == folder.name)


@pytest.mark.parametrize("moment", ["before_it_is_read", "while_it_is_read"])
@pytest.mark.parametrize("harm", [*HARMS, replace_by_another])
async def test_what_is_done_while_staging_is_put_off_and_never_mixed(
    running: Running,
    harm: Harm,
    moment: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    live, before = running.live, await what_it_says(running)
    staging = Staging(running, monkeypatch)
    getattr(staging, moment)(harm)
    attempt = await staging.ended(next(OLDER))
    assert len(staging.harmed) == 2
    assert Phase.STAGING in attempt.phases
    assert attempt.outcome is Outcome.POSTPONED
    assert attempt.reason is not None
    assert attempt.reason.code == "changed"
    assert attempt.reason.message.startswith("model-0000")  # the file is named
    assert Phase.SWAPPING not in attempt.phases
    assert running.live == live
    assert await what_it_says(running) == before
    assert not list((running.folder / "state" / "staging").iterdir())


class StillTimes:
    """Times of files that stand still: the kernel may move none for a store through a mapping."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        for module in (file_reader, files):
            patch.setattr(module, "identity_of", self._identity_of)

    def _identity_of(self, status: os.stat_result) -> Identity:
        return Identity(status.st_dev, status.st_ino, status.st_size, 0, 0)


def store_through_a_mapping(folder: Path) -> None:
    """Another last bit of one weight."""
    with of_weights(folder)[-1].open("r+b") as file:
        file.seek(-2, os.SEEK_END)
        [byte] = file.read(1)
        file.seek(-2, os.SEEK_END)
        file.write(bytes([byte ^ 1]))


def in_place(running: Running, number: int) -> Path:
    """A checkpoint of two shards that is copied to where it is watched, and not renamed."""
    made = write_tiny(running.folder / "made" / f"step_{number}", words(number), shards=2)
    return Path(shutil.copytree(made, running.checkpoints / made.name))


def storing_before_it_is_staged(
    running: Running, patch: pytest.MonkeyPatch, folder: Path
) -> list[str]:
    """Other bytes come into the folder just before it is staged; as what it was known then."""
    StillTimes(patch)
    stage, known = running.engine.weights.stage, list[str]()

    async def stage_other_bytes(checkpoint: Checkpoint) -> Staged:
        if not known:
            known.append(checkpoint.revision.id)
            store_through_a_mapping(folder)
        return await stage(checkpoint)

    patch.setattr(running.engine.weights, "stage", stage_other_bytes)
    return known


async def test_bytes_that_changed_unseen_after_they_were_named_go_live_by_their_own_name(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = running.checkpoints / "step_50"
    stored = storing_before_it_is_staged(running, monkeypatch, folder)
    in_place(running, 50)
    await running.until(lambda: running.live.revision.label == folder.name)
    tried = [each for each in running.attempts if each.revision.label == folder.name]
    reasons = [each.reason for each in tried[:-1] if each.reason is not None]
    assert {each.outcome for each in tried[:-1]} == {Outcome.POSTPONED}
    assert [each.code for each in reasons][:2] == ["changed", "changed"]
    assert "are different now" in reasons[0].message
    assert "a mapping (mmap)" in reasons[1].findings[-1]
    assert [each.revision.id for each in tried[:-1]] == stored * len(reasons)
    assert running.live.revision.id == content_id(files.survey(folder)) != stored[0]


async def test_bytes_that_changed_unseen_before_their_first_read_are_what_is_judged(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = running.checkpoints / "step_51"
    known = storing_before_it_is_staged(running, monkeypatch, folder)
    attempt = await running.attempted(running.drop(51, shards=2))
    assert [each.startswith(UNREAD) for each in known] == [True]
    assert attempt.outcome is Outcome.LIVE
    assert running.live.revision.id == attempt.revision.id == content_id(files.survey(folder))


# --- how often it is read --------------------------------------------------------------------


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The bytes that were read of the files of each folder, by its name."""
    real, read = os.preadv, dict[str, int]()

    def counted(descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        count = real(descriptor, buffers, offset)
        folder = Path(os.readlink(f"/proc/self/fd/{descriptor}")).parent.name
        read[folder] = read.get(folder, 0) + count
        return count

    monkeypatch.setattr(os, "preadv", counted)
    return read


@pytest_asyncio.fixture(loop_scope="module")
async def no_quiet(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a folder count as complete by its rename alone: a look may come before the event.

    A daemon that has just started does not listen for events before its first look.
    """
    await running.until(lambda: any(map(is_rescan, running.happened)))
    source: Any = running.daemon.source
    tree = source._tree
    monkeypatch.setattr(tree, "_options", replace(tree._options, settle=60.0))


def is_rescan(event: Event) -> bool:
    return isinstance(event, SourceScanned) and event.cause == "rescan"


def weights_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in of_weights(folder))


async def test_each_byte_of_a_folder_that_was_written_in_place_is_read_twice_on_its_way(
    running: Running, read: dict[str, int]
) -> None:
    """For its name and its checks, and when it is loaded: far away each reading takes minutes."""
    folder = in_place(running, 60)
    assert (await running.attempted(folder)).outcome is Outcome.LIVE
    weights = weights_of(folder)
    assert 2 * weights <= read[folder.name] <= 2 * weights + LOOKED_AT_AGAIN


@pytest.mark.usefixtures("no_quiet")
async def test_each_byte_of_a_folder_that_came_by_a_rename_is_read_once_on_its_way(
    running: Running, read: dict[str, int]
) -> None:
    folder = running.drop(61, shards=2)
    attempt = await running.attempted(folder)
    assert attempt.outcome is Outcome.LIVE
    weights = weights_of(folder)
    assert weights <= read[folder.name] <= weights + LOOKED_AT_AGAIN
    live = running.live.revision
    assert live == attempt.revision == await running.daemon.source.resolve(folder.name)
    assert live.id == content_id(files.survey(folder))
    assert read[folder.name] <= 2 * weights + LOOKED_AT_AGAIN, "that alone read it again"


@pytest.mark.usefixtures("no_quiet")
async def test_what_did_not_change_is_shared_though_nobody_read_it_before(
    running: Running, read: dict[str, int]
) -> None:
    assert (await running.attempted(running.drop(63))).outcome is Outcome.LIVE
    made = shutil.copytree(running.checkpoints / "step_63", running.folder / "changed")
    tensors = load_file(made / "model.safetensors")
    name = "model.norm.weight"
    tensors[name] = (tensors[name].astype(np.float32) * 1.01).astype(tensors[name].dtype)
    save_file(tensors, made / "model.safetensors")
    folder = made.rename(running.checkpoints / "step_64")
    attempt = await running.attempted(folder)
    loading = attempt.loading
    assert (attempt.outcome, loading is None) == (Outcome.LIVE, False)
    assert loading is not None
    leaves = len(running.live.leaves)
    assert (loading.leaves_staged, loading.leaves_shared) == (1, leaves - 1)
    assert loading.leaves_changed == 1
    assert read[folder.name] <= weights_of(folder) + LOOKED_AT_AGAIN


@pytest.mark.parametrize(("number", "beginning"), [(66, first_read.FIRST_BYTES), (68, 0)])
@pytest.mark.usefixtures("no_quiet")
async def test_a_value_that_is_no_number_is_found_in_the_one_reading_and_in_the_same_words(
    running: Running,
    read: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    beginning: int,
) -> None:
    """In the beginning of it the value costs no kept set its place; in the rest it may."""
    monkeypatch.setattr(first_read, "FIRST_BYTES", beginning)
    replica = running.daemon.slot.replicas().first
    assert (await running.attempted(running.drop(number - 1))).outcome is Outcome.LIVE
    await running.until(lambda: replica.previous is not None)
    kept = replica.previous
    folder = running.drop(number, damage="nan")
    attempt = await running.attempted(folder)
    assert (Phase.STAGING in attempt.phases) == (beginning == 0)
    assert (replica.previous is kept) == (beginning > 0)
    assert read[folder.name] <= weights_of(folder) + LOOKED_AT_AGAIN
    with pytest.raises(CheckpointRejected) as refusal:
        check_checkpoint(None, folder, served=None, policy=Policy())
    assert attempt.outcome is Outcome.REJECTED
    assert attempt.reason == refusal.value.reason
    assert attempt.revision.id == content_id(files.survey(folder))
    assert attempt.revision.id in running.daemon.ledger.refused


async def test_what_is_done_after_it_was_read_goes_unnoticed_and_the_checked_bytes_answer(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Loaders.load

    def load(self: Loaders, checkpoint: Checkpoint, *rest: Any) -> Any:
        made = real(self, checkpoint, *rest)
        for file in of_weights(checkpoint.path):
            rewrite_in_place(file)
        return made

    monkeypatch.setattr(Loaders, "load", load)
    folder = running.drop(2, shards=2)
    answer = await post(running, "reload_weights", model_path=folder.name)
    assert answer.json()["outcome"] == "live", answer.text
    assert (await running.ask())["text"] == words(2)


async def test_a_mount_of_one_megabyte_a_second_delays_the_swap_and_no_answer(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, real, slept = running.checkpoints / "step_70", os.preadv, [0.0]

    def slow(descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        count = real(descriptor, buffers, offset)
        if Path(os.readlink(f"/proc/self/fd/{descriptor}")).is_relative_to(folder):
            slept[0] += count / 1e6
            time.sleep(count / 1e6)  # what such a mount does to the thread that reads
        return count

    monkeypatch.setattr(os, "preadv", slow)
    async with Load(running, 4).on() as load:
        attempt = await running.attempted(running.drop(70))
        answered = len(load.answers)
    assert attempt.outcome is Outcome.LIVE
    assert slept[0] > 3, "every byte was read at that speed"
    assert answered > 3 * load.clients, "the loop stood still while a thread read"
    assert load.failures == []
    assert mixed(load.answers, running.generations) == []


async def test_after_all_that_a_good_checkpoint_goes_live(running: Running) -> None:
    assert (await running.attempted(running.drop(90))).outcome is Outcome.LIVE
    assert (await running.ask())["text"] == words(90)
    assert threads.left_behind() is None
