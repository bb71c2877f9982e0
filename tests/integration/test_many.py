"""Many checkpoints at once: the newest wins, one is staged at most, something goes live.

None of it needs a feature: this daemon has none, and is whole all the same.
"""

import shutil
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from hotreload.events import PhaseEntered, RevisionWanted
from hotreload.features import FEATURES
from hotreload.tiny import write_tiny
from hotreload.types import Outcome, Phase
from tests.features.given import fields_of, metrics_of
from tests.integration.running import (
    Load,
    Running,
    mixed,
    one_daemon,
    one_daemon_marks,
    post,
    words,
)

pytestmark = one_daemon_marks()


running = one_daemon("source.settle=0.3", features=())


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
    wanted = {e.revision.label for e in since if isinstance(e, RevisionWanted)}
    assert 1 <= len(staged) <= len(wanted) <= 50
    assert running.attempts[-1].outcome is Outcome.LIVE


async def test_the_same_bytes_under_a_new_name_are_no_new_revision(running: Running) -> None:
    """They are read once, beside what is live, and nothing comes of it."""
    live, attempts, began = running.live, len(running.attempts), len(running.happened)
    newest = running.checkpoints / live.revision.label
    copy_whole(newest, "step_70")
    for file in newest.iterdir():
        file.touch()
    await running.until(lambda: staged_since(running, began))
    answer = await post(running, "reload_weights", model_path="step_70")
    assert (answer.json()["outcome"], answer.json()["generation"]) == ("live", live.number)
    assert await running.daemon.source.resolve("step_70") == live.revision
    assert (await running.ask())["meta_info"]["generation"] == live.number
    assert len(running.attempts) == attempts
    assert Phase.PROBING not in phases_since(running, began)


def copy_whole(folder: Path, name: str) -> Path:
    """A copy that comes by a rename, as a finished folder does."""
    shutil.copytree(folder, folder.with_name(f"{name}.tmp"))
    return folder.with_name(f"{name}.tmp").rename(folder.with_name(name))


def phases_since(running: Running, began: int) -> list[Phase | None]:
    since = running.happened[began:]
    return [event.phase for event in since if isinstance(event, PhaseEntered)]


def staged_since(running: Running, began: int) -> bool:
    """Whether something was staged since, and that is over."""
    phases = phases_since(running, began)
    return Phase.STAGING in phases and phases[-1] is None


async def test_refused_bytes_under_a_new_name_are_refused_without_a_probe(
    running: Running,
) -> None:
    refused = await running.attempted(running.drop(71, "gibberish"))
    assert refused.reason is not None
    assert refused.reason.code == "probe"
    live, attempts, began = running.live, len(running.attempts), len(running.happened)
    folder = copy_whole(running.checkpoints / refused.revision.label, "step_72")
    await running.until(lambda: staged_since(running, began))
    answer = (await post(running, "reload_weights", model_path=folder.name)).json()
    assert (answer["outcome"], answer["code"]) == ("rejected", "probe")
    assert "refused before" in answer["reason"]
    assert Phase.PROBING not in phases_since(running, began)
    assert (len(running.attempts), running.live) == (attempts, live)


async def test_one_folder_overwritten_in_place_goes_live(running: Running) -> None:
    folder = running.checkpoints / "step_75"
    for number in (75, 76, 77):
        before = running.live.number
        write_tiny(folder, words(number))
        await running.until(lambda before=before: running.live.number > before)  # type: ignore[misc]
        assert (await running.ask())["text"] == words(number)


async def test_without_features_weights_change_and_no_document_tells_of_any(
    running: Running,
) -> None:
    assert (await running.attempted(running.drop(80))).outcome is Outcome.LIVE
    async with Load(running, 4).on() as load:
        assert (await running.attempted(running.drop(81))).outcome is Outcome.LIVE
        refused = await running.attempted(running.drop(82, "truncated"))
        assert refused.outcome is Outcome.REJECTED
        back = (await post(running, "rollback", hold=False)).json()
        assert (back["ok"], back["label"]) == (True, "step_80")
    assert load.failures == []
    assert mixed(load.answers, running.generations) == []
    async with running.client() as client:
        documents = {
            name: (await client.get(f"/{name}")).json()
            for name in ("status", "gate", "history", "openapi.json")
        }
        assert (await client.get("/is_paused")).status_code == 404
    status, gate = documents["status"], documents["gate"]
    (last, *_) = documents["history"]["attempts"]
    assert (status["label"], gate["verdict"], last["label"]) == (
        "step_80",
        "rolled_back",
        "step_80",
    )
    rows = [row["name"] for row in status["rows"]]
    assert {"state", "generation"} <= {*rows}
    fields = {name for each in FEATURES for name in fields_of(each)}
    assert fields & {*status, *rows, *gate, *last} == set()
    paths = documents["openapi.json"]["paths"].keys()
    assert ("/status" in paths, {path for path in paths if "pause" in path}) == (True, set())
    page = text_string_to_metric_families(running.daemon.metrics.render().decode())
    exported = {family.name for family in page}
    assert "hotreload_generation" in exported
    assert exported & {name for each in FEATURES for name in metrics_of(each)} == set()
