"""Generations that say different things, clients who ask on and on, and what each must be told."""

import asyncio
import itertools
import random
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotreload.tiny import write_tiny
from hotreload.types import Staged
from tests.engine import real
from tests.waiting import turn_until

Engine = Any

ROWS = real.ARGS["max_running_requests"]
ARGS = {"chunked_prefill_size": 64}

SAYINGS = (
    "gold river {}",
    "north wind and rain {}",
    "seven horse stone table {}",
    "old tree {}",
    "blue is the sea {}",
)


def saying_of(number: int) -> str:
    """The words of two numbers in a row differ, and so do how many they are."""
    return SAYINGS[number % len(SAYINGS)].format(number)


class Voices(real.Folders):
    """Tiny checkpoints by number, each with words of its own.

    A token of another generation shows wherever it stands; so does a KV page of another, since the
    number is read from there.
    """

    def folder(self, number: int, damage: str | None = None) -> Path:
        folder = self.root / f"step_{number}{'_' + damage if damage else ''}"
        shutil.rmtree(folder, ignore_errors=True)  # a test may have written another model there
        return write_tiny(folder, saying_of(number), damage=damage)


@dataclass(frozen=True, slots=True)
class Told:
    """An answer, and what it must be."""

    weights: Staged
    tokens: int
    answer: dict[str, Any]

    @property
    def is_whole(self) -> bool:
        """All the tokens that were asked for, all of them said by the one generation."""
        made: int = self.answer["meta_info"]["completion_tokens"]
        return made == self.tokens and is_said_by(self.weights, self.answer["text"])


def is_said_by(weights: Staged, text: str) -> bool:
    """Whether the text is what these weights say over and over, and nothing else."""
    saying = saying_of(int(weights.revision.id.split("_")[1]))
    return bool(text) and (saying * (len(text) // len(saying) + 1)).startswith(text)


async def tell(
    engine: Engine, tokens: int, weights: Staged | None = None, prompt: str = "hello"
) -> Told:
    """What these weights, or the live ones, answer in exactly so many tokens."""
    weights = weights or engine.weights.live
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    request = {"text": prompt, "sampling_params": sampling, "stream": True}
    async with aclosing(engine.answers.generate(request, weights)) as pieces:
        async for piece in pieces:
            last: dict[str, Any] = piece
    return Told(weights, tokens, last)


class Crowd:
    """Clients, each of whom asks again when it is answered, by what is live then."""

    def __init__(
        self,
        engine: Engine,
        clients: int = 6,
        tokens: Sequence[int] = (3, 8, 30, 60),
        prompts: Sequence[str] = ("hello",),
    ) -> None:
        self.told: list[Told] = []
        self._engine = engine
        self._clients = clients
        self._tokens = tokens
        self._prompts = prompts
        self._asked: list[Staged] = []
        self._leaving = False

    @property
    def mixed(self) -> list[Told]:
        """Answers that are not all one generation's."""
        return [each for each in self.told if not each.is_whole]

    def asked_of(self, weights: Staged) -> int:
        """How many wait for an answer of these weights."""
        return sum(each is weights for each in self._asked)

    async def more(self, answers: int, by: Staged | None = None) -> None:
        """Wait until so many more were given, by these weights or by any."""

        def given() -> int:
            return sum(by is None or each.weights is by for each in self.told)

        enough = given() + answers
        await until(lambda: given() >= enough)

    @asynccontextmanager
    async def asking(self) -> AsyncIterator["Crowd"]:
        """They ask meanwhile; at the end each waits for its last answer."""
        async with asyncio.TaskGroup() as clients:
            for number in range(self._clients):
                clients.create_task(self._client(random.Random(number)))
            try:
                yield self
            finally:
                self._leaving = True

    async def _client(self, chance: random.Random) -> None:
        for number in itertools.count():
            if self._leaving:
                return
            prompt = f"{chance.choice(self._prompts)} {number % 7}"
            weights = self._engine.weights.live
            self._asked.append(weights)
            try:
                answer = await tell(self._engine, chance.choice(self._tokens), weights, prompt)
            finally:
                self._asked = _without_one(self._asked, weights)
            self.told.append(answer)


def _without_one(asked: list[Staged], weights: Staged) -> list[Staged]:
    place = next(at for at, each in enumerate(asked) if each is weights)
    return [*asked[:place], *asked[place + 1 :]]


async def end(engine: Engine, before: Staged, crowd: Crowd | None = None) -> None:
    """Wait until nobody waits for these weights, then end their lane and free them."""
    if crowd is not None:
        await until(lambda: not crowd.asked_of(before))
    await engine.switch.retire(before)
    await engine.weights.release(before)


async def replace(engine: Engine, voices: Voices, number: int, crowd: Crowd) -> None:
    """Stage, prove, flip, and let the old generation end, while clients ask."""
    staged = await engine.weights.stage(voices.checkpoint(number))
    await engine.unseen.prove(staged)
    before = await engine.switch.flip(staged)
    await crowd.more(4, by=staged)
    await end(engine, before, crowd)


async def until(holds: Callable[[], bool]) -> None:
    """Wait until a look at the engine shows it; each look takes time from the engine's threads."""
    await turn_until(holds, pause=0.005)


def scheduler_of(engine: Engine) -> Any:
    """Upstream's scheduler."""
    return engine._scheduler.scheduler


def lanes_of(engine: Engine) -> list[Any]:
    """The lanes there are, the oldest first."""
    lanes: list[Any] = engine._scheduler.lanes._rotation.lanes
    return lanes


async def idle(engine: Engine) -> None:
    """Return when no step is under way any more."""
    await engine.switch.between.run(lambda: None)


async def check_memory(engine: Engine) -> None:
    """Upstream's own check for leaked rows and tokens, once nothing is under way."""
    scheduler = scheduler_of(engine)
    assert len(lanes_of(engine)) == 1
    await engine.switch.between.run(scheduler.check_memory)


async def at_a_turn(engine: Engine, job: Any) -> Any:
    """What the job returns, done by the scheduler thread at its next turn."""
    return await engine.switch.between.at_a_turn(job)


def holds(engine: Engine, number: int) -> list[str]:
    """What a lane has, a word for each request."""
    lanes = engine._scheduler.lanes
    look = lanes._lane(number).look
    running, chunked = lanes._kind.list_running(look), lanes._kind.find_chunked(look)
    return [
        *("runs" for each in running if each is not chunked),
        *("in part" for _ in [chunked] if chunked is not None),
        *("waits" for _ in look("waiting_queue")),
    ]


@asynccontextmanager
async def standing_still(engine: Engine) -> AsyncIterator[None]:
    """The scheduler thread waits meanwhile, and then finds all that was asked at once."""
    stands, go = threading.Event(), threading.Event()

    def stand() -> None:
        stands.set()
        go.wait()

    standing = asyncio.create_task(at_a_turn(engine, stand))
    try:
        await asyncio.to_thread(stands.wait)
        yield
    finally:
        go.set()
        await standing


async def begun(engine: Engine, *asks: Coroutine[Any, Any, Told]) -> list[asyncio.Task[Told]]:
    """Ask these; they have been sent to the engine, in this order, but need not have begun."""
    tasks = []
    for ask in asks:
        before = engine.answers.under_way
        tasks.append(asyncio.create_task(ask))
        await until(lambda before=before: engine.answers.under_way > before)  # type: ignore[misc]
    return tasks


@asynccontextmanager
async def spoiled(voices: Voices) -> AsyncIterator[Engine]:
    """An engine to be spoiled; it may be lost."""
    async with real.engine_of(voices.folder(1), voices.root / "spoiled", args=ARGS) as engine:
        yield engine
