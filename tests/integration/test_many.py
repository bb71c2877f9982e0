"""Many checkpoints at once: the newest wins, one is staged at most, something goes live."""

import shutil

from hotreload.events import PhaseEntered, RevisionWanted
from hotreload.tiny import write_tiny
from hotreload.types import Outcome, Phase
from tests.integration.running import Load, Running, mixed, one_daemon, one_daemon_marks, words

pytestmark = one_daemon_marks()


running = one_daemon()


async def test_of_two_at_once_the_newest_wins(running: Running) -> None:
    running.drop(3)
    running.drop(2)
    await running.until(lambda: running.live.revision.label == "step_3")
    assert (await running.ask())["text"] == words(3)


async def test_fifty_in_a_few_seconds_end_with_the_newest(running: Running) -> None:
    started = len(running.happened)
    async with Load(running, 4).on() as load:
        for number in range(10, 60):
            running.drop(number)
            await running.ask()  # so that they come over a few seconds, not in one
        await running.until(lambda: running.live.revision.label == "step_59")
    since = running.happened[started:]
    assert load.failures == []
    assert mixed(load.answers, running.generations) == []
    staged = [e for e in since if isinstance(e, PhaseEntered) and e.phase is Phase.STAGING]
    wanted = [e for e in since if isinstance(e, RevisionWanted)]
    assert 1 <= len(staged) <= len(wanted) <= 50
    assert running.attempts[-1].outcome is Outcome.LIVE


async def test_the_same_bytes_under_a_new_name_are_no_new_revision(running: Running) -> None:
    live, attempts = running.live, len(running.attempts)
    newest = running.checkpoints / live.revision.label
    shutil.copytree(newest, running.checkpoints / "step_70.tmp")
    (running.checkpoints / "step_70.tmp").rename(running.checkpoints / "step_70")
    for file in newest.iterdir():
        file.touch()
    revision = await running.daemon.source.resolve("step_70")
    assert revision == live.revision
    assert (await running.ask())["meta_info"]["generation"] == live.number
    assert len(running.attempts) == attempts


async def test_one_folder_overwritten_in_place_goes_live(running: Running) -> None:
    folder = running.checkpoints / "step_71"
    for number in (71, 72, 73):
        before = running.live.number
        write_tiny(folder, words(number))
        await running.until(lambda before=before: running.live.number > before)  # type: ignore[misc]
        assert (await running.ask())["text"] == words(number)
