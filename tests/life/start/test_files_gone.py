"""What a restart or a rollback would not find is told while the daemon runs."""

import asyncio
import shutil
from pathlib import Path

import pytest

from hotreload.core.ledger import Ledger, PastGeneration
from hotreload.events import Event, SettingsRead, TroubleNews
from hotreload.life.start import whereabouts
from hotreload.life.start.start_troubles import FilesGone
from hotreload.types import Generation, Revision
from tests.fakes import FakeSource, Steps
from tests.waiting import turn_until

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


class World:
    """Two generations with files, the second live; and what was told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = Ledger()
        self.source = FakeSource(Steps(), folder)
        self.told: list[Event] = []
        self.kept: set[int] = set()
        self.files_gone = FilesGone(self.ledger, self.source, self.told.append)
        for number in (1, 2):
            self.goes_live(number, Revision(f"id {number}", f"step_{number}"), self.put(number))

    def put(self, number: int) -> Path:
        path = self.folder / f"step_{number}"
        path.mkdir()
        for name in SHARDS:
            (path / name).touch()
        return path

    def goes_live(self, number: int, revision: Revision, path: Path | str) -> None:
        self.ledger.went_live(Generation(number, revision, f"fp {revision.id}", 0.0), str(path))

    def keeps(self, place: PastGeneration) -> bool:
        return place.number in self.kept

    async def look(self) -> str | None:
        await self.files_gone.look(self.keeps)
        last = self.told[-1] if self.told else None
        return last.message if isinstance(last, TroubleNews) else None

    def delete(self, number: int) -> None:
        shutil.rmtree(self.folder / f"step_{number}")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_what_a_restart_would_not_find_is_told_until_it_is_back(world: World) -> None:
    assert await world.look() is None
    world.delete(2)
    path = world.folder / "step_2"
    told = f"generation 2, step_2 (id 2): {path} is gone; a restart cannot find it"
    assert await world.look() == told
    path.mkdir()  # as where a mount failed
    assert await world.look() == told
    path.rmdir()
    world.put(2)
    assert await world.look() is None
    assert len(world.told) == 2


async def test_one_shard_that_is_gone_is_told(world: World) -> None:
    assert await world.look() is None
    (world.folder / "step_2" / SHARDS[1]).unlink()
    assert f"step_2 has no {SHARDS[1]} any more" in str(await world.look())


async def test_the_generation_before_matters_only_where_a_rollback_needs_its_files(
    world: World,
) -> None:
    world.delete(1)
    assert "generation 1, step_1" in str(await world.look())
    assert "a rollback cannot find it" in str(await world.look())
    world.kept = {1}
    assert await world.look() is None


async def test_what_the_source_can_bring_again_is_not_gone(world: World) -> None:
    world.delete(2)
    world.source.known["step_2"] = Revision("id 2", "step_2")
    assert await world.look() is None
    world.source.known["step_2"] = Revision("other bytes", "step_2")
    assert await world.look() is not None


async def test_of_noise_what_it_was_put_on_matters(world: World) -> None:
    world.kept = {1}
    world.goes_live(3, Revision("perturbed-1"), "")
    assert await world.look() is None
    world.delete(2)
    assert "generation 2, step_2" in str(await world.look())


async def test_a_disk_that_does_not_answer_is_told_and_the_source_is_not_asked(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whereabouts, "left_behind", lambda: "a read of /mnt")
    monkeypatch.setattr("hotreload.life.start.start_troubles.left_behind", lambda: "a read of /mnt")
    world.source.known["step_2"] = Revision("id 2", "step_2")
    assert "a read of /mnt still hangs" in str(await world.look())


async def test_it_looks_at_once_when_the_settings_are_read_again(world: World) -> None:
    looking = asyncio.create_task(world.files_gone.run(world.keeps))
    await asyncio.sleep(0)
    world.delete(2)
    world.files_gone.observe(SettingsRead())
    await turn_until(lambda: bool(world.told), pause=0.01)
    looking.cancel()
