"""A whole daemon on the real engine that follows a local hub."""

from pathlib import Path
from typing import Any

from hotreload.features import FEATURES
from hotreload.settings.load import load
from hotreload.tiny import write_tiny
from hotreload.types import Generation
from tests.hub.local_hub import REPO, LocalHub
from tests.integration.running import ENGINE_ARGS, Running, words
from tests.waiting import Witness

LABEL = f"{REPO}@main"


def tiny_files(folder: Path, number: int, damage: str | None = None) -> dict[str, bytes]:
    """A tiny checkpoint that says its number, as a commit's files."""
    made = write_tiny(folder / f"{damage}-{number}", words(number), damage=damage)
    return {path.name: path.read_bytes() for path in made.iterdir()}


def hub_settings(folder: Path, hub: LocalHub) -> list[str]:
    return [
        f"engine.args={ENGINE_ARGS}",
        "engine.staging_priority=normal",
        "engine.warm_batches=0",
        "source.kind=huggingface",
        f"source.repo={REPO}",
        f"source.endpoint={hub.url}",
        "source.poll=0.1",
        f"server.socket={folder / 's'}",
        "metrics.address=''",
        f"state.directory={folder / 'state'}",
    ]


class FromHub(Running):
    """The daemon, its hub, and what was pushed to it."""

    def __init__(self, folder: Path, hub: LocalHub, *sets: str) -> None:
        Witness.__init__(self)
        self.folder, self.hub = folder, hub
        self.socket = folder / "s"
        self.says: dict[str, str] = {}
        self.features = FEATURES
        self.settings = load(None, [*hub_settings(folder, hub), *sets], {}, FEATURES).settings

    def push(self, number: int, damage: str | None = None) -> str:
        sha = self.hub.push(tiny_files(self.folder / "made", number, damage))
        self.says[sha] = words(number)
        return sha

    async def lives(self, sha: str) -> Generation:
        await self.until(lambda: bool(self.generations) and self.live.revision.id == sha)
        return self.live

    def mixed(self, answers: list[tuple[int, str]]) -> list[tuple[int, str]]:
        """Answers whose text is not what the generation named in them says."""
        says = {each.number: self.says[each.revision.id] for each in self.generations}
        return [(number, text) for number, text in answers if says.get(number) != text]

    async def status(self) -> dict[str, Any]:
        return await self.document("/status")

    async def document(self, route: str) -> dict[str, Any]:
        async with self.client() as client:
            return dict((await client.get(route)).json())
