"""What happens in an attempt, event by event: the real core with an engine and a source of words.

Each story is told by every event that the core publishes, and by how things are at its end.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hotreload.attempts import Attempt
from hotreload.core.engines.background import close_drained_generations
from hotreload.core.rules import KeepPrevious, Rules
from hotreload.errors import (
    CheckpointCorrupt,
    HotReloadError,
    NotEnoughMemory,
    ProbeFailed,
    SourceUnavailable,
)
from hotreload.events import Event, GenerationEnded, PhaseEntered
from hotreload.types import Generation, LoadFacts, Mode, Noise, Revision
from tests.core.conftest import World
from tests.evidence import BLANK
from tests.fakes import HANG, lost
from tests.golden.blanks import blanked
from tests.golden.compare import Golden, sections
from tests.golden.layout import laid_out
from tests.golden.observed import told_shortly
from tests.waiting import turn_until

ONE, TWO, THREE = (Revision(f"r{n}", f"step_{n}") for n in (1, 2, 3))
BAD = Revision("rotten", "step_9_bad")
FAULTS = {
    "fetch": SourceUnavailable("the folder does not answer"),
    "validate": CheckpointCorrupt("model.safetensors ends early", code="truncated"),
    "stage": NotEnoughMemory("3 GB are missing"),
    "prove": NotEnoughMemory("no room for the shadow"),
    "flip": lost(),
    "probe": ProbeFailed("the answer does not hold 'Paris'"),
    "exchange": lost(),
}


class Told(World):
    """Keeps a line for each event, and what operators are told; old generations fade out."""

    def __init__(self, folder: Path, rules: Rules, mode: Mode, engines: int) -> None:
        super().__init__(folder, rules, mode=mode, engines=engines, blank=BLANK)
        self.told: list[str] = []
        self._ended: list[str] = []
        self.subscribe(self._tell)

    def _tell(self, event: Event) -> None:
        """An old generation ends beside all else that happens: its line has a place of its own."""
        lines = self._ended if isinstance(event, GenerationEnded) else self.told
        if not isinstance(event, PhaseEntered):
            lines.append(told_shortly(event))
            return
        begun = f"phases of {event.revision} on {event.replica}:"
        if not lines or not lines[-1].startswith(begun):
            lines.append(begun)
        lines[-1] += f" {event.phase or '(over)'}"

    @asynccontextmanager
    async def fading(self, keep: KeepPrevious) -> AsyncIterator[None]:
        """As the daemon does, see old generations out until the block ends."""
        ends = [
            asyncio.create_task(close_drained_generations(each, keep=keep, publish=self.publish))
            for each in self.each
        ]
        try:
            yield
        finally:
            for end in ends:
                end.cancel()
            await asyncio.wait(ends)

    async def settles(self) -> None:
        """Until nothing is left to do, and one generation answers."""
        await self.rests()
        await turn_until(lambda: not any(each.fading for each in self.each))
        self.told += sorted(self._ended)
        self._ended.clear()

    async def wished(self, *revisions: Revision) -> None:
        """The source wishes them, one after the other, and each is tried to its end."""
        for revision in revisions:
            self.wish(revision)
            await self.settles()

    async def ordered(self, verb: str, *given: object, **more: object) -> None:
        """An operator asks, and is told what came of it."""
        try:
            promise = await getattr(self.operator, verb)(*given, **more)
            await self.settles()
            answer = promise.result() if isinstance(promise, asyncio.Future) else promise
            self.told.append(f"(the operator is told {shown(answer)})")
        except HotReloadError as refusal:
            self.told.append(f"(the operator is told {type(refusal).__name__}: {refusal})")


def shown(answer: Attempt | Generation) -> str:
    """What an operator reads of an answer first."""
    if isinstance(answer, Generation):
        return f"generation {answer.number}"
    made = "" if answer.generation is None else f" as generation {answer.generation}"
    return f"{answer.outcome}{made}: {answer.reason.message if answer.reason else 'no reason'}"


Story = Callable[[Told], Awaitable[object]]


async def good(world: Told) -> None:
    world.engine.loading = LoadFacts("own", leaves_staged=3, leaves_changed=2)
    await world.wished(ONE)


async def newer_while_it_stages(world: Told) -> None:
    world.steps.faults["stage"] = HANG
    async with world.running():
        world.source.publish(ONE)
        await world.steps.entered["stage"].wait()
        world.source.publish(TWO)
        await world.source.heard()
        del world.steps.faults["stage"]
        world.steps.released["stage"].set()
        await world.attempted(2)
    await world.settles()


async def bad_answers(world: Told) -> None:
    await world.wished(BAD)
    await world.ordered("reload", BAD.label)
    await world.ordered("reload", BAD.label, force=True)


async def back_and_forth(world: Told) -> None:
    await world.wished(ONE, TWO)
    await world.ordered("rollback", None)
    await world.ordered("rollback", 1)
    await world.ordered("rollback", 99)
    await world.ordered("reload", "step_2")
    await world.ordered("reload", "step_77")


async def pinned(world: Told) -> None:
    await world.ordered("pin")
    await world.wished(ONE)
    await world.ordered("reload", "step_1")
    await world.ordered("unpin")
    await world.settles()


async def noise(world: Told) -> None:
    await world.ordered("perturb", Noise(seed=7, scale=0.01, num_leaves=1))
    await world.ordered("rollback", None)


async def dry_runs(world: Told) -> None:
    world.source.known |= {each.label: each for each in (ONE, BAD)}
    await world.ordered("rehearse", ONE.label)
    await world.ordered("rehearse", BAD.label)


async def not_saved(world: Told) -> None:
    world.disk_fault = "the disk is full"
    await world.wished(ONE)
    await world.ordered("pin")


def failing(step: str) -> Story:
    """A story in which a step fails, in the engine that is asked last."""

    async def story(world: Told) -> None:
        steps = world.steps if step in ("fetch", "validate", "stage") else world.engines[-1].steps
        steps.faults[step] = FAULTS[step]
        await world.wished(ONE)

    return story


STORIES: dict[str, Story] = {
    "a good checkpoint": good,
    "a newer one comes while it is staged": newer_while_it_stages,
    "bad answers, asked for again, and by force": bad_answers,
    "back, further back, and forth": back_and_forth,
    "a pin": pinned,
    "noise": noise,
    "dry runs": dry_runs,
    "a state that cannot be saved": not_saved,
    **{f"{step} fails": failing(step) for step in FAULTS},
}
WAYS = {
    "overlap": (Mode.OVERLAP, 1, Rules()),
    "overlap, previous on the host": (
        Mode.OVERLAP,
        1,
        Rules(sets=3, keep_previous=KeepPrevious.HOST),
    ),
    "overlap, nothing kept": (Mode.OVERLAP, 1, Rules(sets=3, keep_previous=KeepPrevious.NONE)),
    "drain": (Mode.DRAIN, 1, Rules()),
    "two engines, rolling": (Mode.OVERLAP, 2, Rules()),
    "two engines, together": (Mode.OVERLAP, 2, Rules(rollout="together")),
    "two engines that drain": (Mode.DRAIN, 2, Rules()),
}


async def told(folder: Path, way: str, story: Story) -> str:
    """Every event of a story, and how things are at its end."""
    mode, engines, rules = WAYS[way]
    world = Told(folder, rules, mode, engines)
    async with world.fading(rules.keep_previous):
        try:
            await story(world)
        except HotReloadError as end:
            world.told.append(f"(it ends with {type(end).__name__}: {end})")
    gates = ", ".join(gate.state for gate in world.entrance.gates)
    live = [f"generation {each.live.number} ({each.live.revision})" for each in world.each]
    held = [each.sets_held for each in world.engines]
    return "\n".join([*world.told, f"at the end: gates {gates}; live {live}; sets held {held}"])


WHEN = re.compile(r' \w+="TIME"')
LIKE = {
    "overlap, previous on the host": "overlap",
    "overlap, nothing kept": "overlap",
    "two engines, together": "two engines, rolling",
}
"""Ways of which only the stories are kept that go otherwise."""


@pytest.mark.parametrize("way", WAYS)
async def test_attempts(golden: Golden, tmp_path: Path, way: str) -> None:
    texts = {name: await told(tmp_path, way, story) for name, story in STORIES.items()}
    if way in LIKE:
        alike = {name: await told(tmp_path, LIKE[way], story) for name, story in STORIES.items()}
        texts = {name: text for name, text in texts.items() if text != alike[name]}
    name = way.replace(",", "").replace(" ", "-")
    text = blanked(sections(texts) or "(as the other way)", tmp_path)
    golden(f"attempts-{name}.txt", WHEN.sub("", text))


async def test_the_state_on_the_disk(golden: Golden, tmp_path: Path) -> None:
    """What a restart reads, and what a daemon of another version may have to read."""
    rules = Rules()
    world = Told(tmp_path, rules, Mode.OVERLAP, 1)
    async with world.fading(rules.keep_previous):
        await back_and_forth(world)
        await bad_answers(world)
        await pinned(world)
    state = {**json.loads(world.on_disk), "checksum": "CHECKSUM"}
    golden("state.json", blanked(laid_out(state), tmp_path))
