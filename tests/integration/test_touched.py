"""What touches a checkpoint's files without being a new one refuses nothing, in a whole daemon.

Its engine is one of words: no answer is about how weights are computed with.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hotreload.checkpoint import survey as files
from hotreload.events import TroubleNews
from hotreload.types import Generation, Outcome
from tests.integration.running import Running, post, words
from tests.waiting import PATIENCE
from tests.words.engine import starting_engines_of_words

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Lives(Running):
    """Two lives of a daemon; what is asked for by force in the first, its files change."""

    first: Generation
    answer: dict[str, Any]
    refused: list[dict[str, Any]]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lives]:
    running = Lives(tmp_path_factory.mktemp("daemon"), "source.rescan=0.3")
    running.drop(1)
    with starting_engines_of_words():
        async with running.serving():
            await force_what_changes(running)
        async with running.serving():
            yield running
    assert running.exit_code == 0


async def force_what_changes(running: Lives) -> None:
    """Ask by force for what is live while its files become others, and put them back then."""
    live = running.drop(2)
    assert (await running.attempted(live)).outcome is Outcome.LIVE
    running.first = running.live
    with pytest.MonkeyPatch.context() as patch:
        aside = running.folder / "aside"
        shutil.copytree(live, aside)
        before_each_check(patch, live, lambda: other_bytes(live))
        answer = await post(running, "reload_weights", model_path="step_2", force=True)
    running.answer, running.refused = answer.json(), await refusals(running)
    shutil.rmtree(live)
    aside.rename(live)


def before_each_check(patch: pytest.MonkeyPatch, folder: Path, do: Callable[[], None]) -> None:
    """Between the look of the check at this folder and its reading."""
    really = files.survey

    def survey(looked_at: Path, *rest: Any) -> Any:
        looked = really(looked_at, *rest)
        if looked_at == folder:
            do()
        return looked

    patch.setattr("hotreload.checkpoint.check.survey", survey)


def other_bytes(folder: Path) -> None:
    for file in folder.glob("*.safetensors"):
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)


def chmod(folder: Path) -> None:
    for path in (folder, *folder.iterdir()):
        path.chmod(path.stat().st_mode ^ 0o005)


def back_up(folder: Path) -> None:
    for number in range(1000):
        backup = folder.parent.parent / f"backup-{number}"
        if not backup.exists():
            shutil.copytree(folder, backup, copy_function=os.link)
            return


async def status(running: Running) -> dict[str, Any]:
    async with running.client() as client:
        return dict((await client.get("/status")).json())


async def refusals(running: Running) -> list[dict[str, Any]]:
    return list((await status(running))["refused"])


async def trouble_is(running: Running, value: str) -> None:
    """Until the page of metrics, which is made once a second, says so."""
    async with running.client() as client, asyncio.timeout(PATIENCE):
        sample = f'hotreload_trouble{{code="source_empty"}} {value}'
        while sample not in (await client.get("/metrics")).text:  # noqa: ASYNC110 no event tells
            await asyncio.sleep(0.1)


async def test_what_is_live_is_forced_while_its_files_change_and_a_restart_finds_it(
    running: Lives,
) -> None:
    answer = running.answer
    assert (answer["outcome"], answer["code"]) == ("postponed", "changed")
    assert all(each["revision"] != running.first.revision.id for each in running.refused)
    again = await status(running)
    assert again["generation"] == running.first.number
    assert again["fingerprint"] == running.first.fingerprint
    assert (await running.ask())["text"] == words(2)


@pytest.mark.parametrize("touch", [chmod, back_up])
async def test_a_chmod_and_a_backup_in_the_midst_of_a_check_change_nothing(
    running: Lives, monkeypatch: pytest.MonkeyPatch, touch: Callable[[Path], None]
) -> None:
    folder, before = running.checkpoints / "step_2", running.live
    before_each_check(monkeypatch, folder, lambda: touch(folder))
    answer = await post(running, "reload_weights", model_path="step_2", force=True)
    assert answer.json()["outcome"] == "live", answer.text
    assert running.live.fingerprint == before.fingerprint
    assert running.live.revision == before.revision


async def test_what_is_refused_stays_refused_whatever_touches_its_files(running: Lives) -> None:
    folder = running.drop(3, damage="nan")
    assert (await running.attempted(folder)).outcome is Outcome.REJECTED
    tried = len(running.attempts)
    for touch in (chmod, back_up):
        touch(folder)
        answer = await post(running, "reload_weights", model_path=folder.name)
        assert answer.json()["code"] == "nonfinite"
    assert len(running.attempts) == tried
    assert [each["label"] for each in await refusals(running)] == [folder.name]


async def test_a_source_that_is_emptied_is_a_trouble_until_it_holds_a_checkpoint(
    running: Lives,
) -> None:
    def shown() -> list[str | None]:
        return [each.message for each in running.happened if isinstance(each, TroubleNews)]

    assert shown() == []
    running.checkpoints.rename(running.folder / "unmounted")
    running.checkpoints.mkdir()
    await running.until(lambda: len(shown()) == 1)
    (trouble,) = (await status(running))["troubles"]
    assert trouble["code"] == "source_empty"
    assert str(running.checkpoints) in trouble["message"]
    assert "it held " in trouble["message"]
    await trouble_is(running, "1.0")
    gone = await post(running, "rollback", generation=1)
    assert gone.status_code == 422
    assert f"its files are gone from {running.checkpoints / 'step_1'}" in gone.text
    running.checkpoints.rmdir()
    (running.folder / "unmounted").rename(running.checkpoints)
    await running.until(lambda: len(shown()) == 2)
    assert (await status(running))["troubles"] == []
    await trouble_is(running, "0.0")
    assert (await running.ask())["text"] == words(2)
