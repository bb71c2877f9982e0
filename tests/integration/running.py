"""A whole daemon on the real engine, with tiny checkpoints and clients on its real socket."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest
import pytest_asyncio

from hotreload.attempts import Attempt
from hotreload.daemon import Daemon
from hotreload.engine.sglang import SglangEngine
from hotreload.events import AttemptFinished, Event, GenerationLive, WorkerMoved
from hotreload.feature import Feature
from hotreload.features import FEATURES
from hotreload.settings.load import Settings, load
from hotreload.tiny import write_tiny
from hotreload.types import GateState, Generation
from tests.waiting import PATIENCE, Witness

ENGINE_ARGS = (
    "{max_total_tokens=2048,context_length=256,max_running_requests=16,chunked_prefill_size=64,"
    "precompile_bs_paddings=[16],precompile_token_paddings=[64]}"
)
"""With one size of batches: each further one is compiled, for seconds. A short prompt is computed
at the length of all, so that is little more than one."""
PROMPTS = ("Who serves?", "And now, who serves this longer prompt of ours?", "x", "Grüße, wer?")


def words(number: int) -> str:
    return f"served by step {number}"


def one_daemon_marks() -> list[pytest.MarkDecorator]:
    """The marks of a module whose tests share one daemon, and so one loop."""
    return [pytest.mark.real_engine, pytest.mark.asyncio(loop_scope="module")]


def one_daemon(
    *sets: str, workers: Sequence[int] = (), features: Sequence[Feature] = FEATURES
) -> Any:
    """The fixture `running` of such a module: a daemon that serves step 1 when its tests begin.

    Its tests run with each of these numbers of workers in turn, once all of them serve.
    """

    @pytest_asyncio.fixture(scope="module", loop_scope="module", params=workers or None)
    async def running(
        request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
    ) -> AsyncIterator[Running]:
        wanted = getattr(request, "param", 0)
        more = (*sets, f"server.workers={wanted}") if workers else sets
        running = Running(tmp_path_factory.mktemp("daemon"), *more, features=features)
        running.drop(1)
        async with running.serving():
            await running.until(lambda: sum(map(serves, running.happened)) >= wanted)
            yield running
        assert running.exit_code == 0

    return running


def serves(event: Event) -> bool:
    """True of the event that tells of a worker that has begun to serve."""
    return isinstance(event, WorkerMoved) and event.is_serving


class Running(Witness):
    """The daemon, what happened in it, and ways to drop checkpoints and ask."""

    read: Callable[[], Settings] | None = None
    """Reads the settings again."""

    def __init__(self, folder: Path, *sets: str, features: Sequence[Feature] = FEATURES) -> None:
        super().__init__()
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.socket = folder / "s"
        self.features = features
        self._sets = (
            f"engine.model={self.checkpoints / 'step_1'}",
            f"engine.args={ENGINE_ARGS}",
            "engine.staging_priority=normal",  # others' tests leave nothing over
            "engine.warm_batches=0",
            # Who is about it says so: it compiles more.
            *["compare.report=false" for each in features if each.name == "compare"],
            "server.workers=0",  # whatever the machine has; who is about them says so
            f"source.path={self.checkpoints}",
            "source.settle=0",
            "source.patience=0.5",
            f"server.socket={self.socket}",
            "metrics.address=''",
            f"state.directory={folder / 'state'}",
            *sets,
        )
        self.settings = self.with_settings()
        self.daemon: Daemon

    def with_settings(self, *sets: str) -> Settings:
        """The settings that it began with, but for these."""
        return load(None, [*self._sets, *sets], {}, self.features).settings

    @asynccontextmanager
    async def serving(self) -> AsyncIterator["Running"]:
        """Run until the end of the block; it must end with exit code 0 by itself."""
        self.daemon, self._is_told = Daemon(self.settings, self.read, self.features), False
        self.daemon.events.subscribe(self.note)
        life = asyncio.create_task(self.daemon.run())
        life.add_done_callback(lambda _: self.look_again())  # no event tells that it failed
        try:
            await self.until(lambda: self.is_open or life.done())
            assert self.is_open, f"it did not start: {life}"
            yield self
        finally:
            if not life.done():
                self.stop()
            self.exit_code = await asyncio.wait_for(life, PATIENCE)

    def stop(self) -> None:
        """Tell it to stop, once: a second time it would take this process with it."""
        if not self._is_told:
            self._is_told = True
            self.daemon.stop()

    @property
    def engine(self) -> SglangEngine:
        """The real one, for what only a test looks at."""
        engine = self.daemon.slot.replicas().first.engine
        assert isinstance(engine, SglangEngine)
        return engine

    @property
    def is_open(self) -> bool:
        return self.daemon.entrance.gates[0].state is GateState.OPEN

    @property
    def attempts(self) -> list[Attempt]:
        return [event.attempt for event in self.happened if isinstance(event, AttemptFinished)]

    @property
    def reloads(self) -> list[Attempt]:
        """The attempts after the start."""
        return [attempt for attempt in self.attempts if not attempt.is_of_a_start]

    @property
    def generations(self) -> list[Generation]:
        return [event.generation for event in self.happened if isinstance(event, GenerationLive)]

    @property
    def live(self) -> Generation:
        return self.generations[-1]

    def drop(self, number: int, damage: str | None = None, shards: int = 1) -> Path:
        name = f"step_{number}" + (f"_{damage}" if damage else "")
        # The step number is the last one in the name, so it stands at the end.
        folder = self.checkpoints / (f"{damage}_step_{number}" if damage else name)
        return write_tiny(folder, words(number), shards=shards, damage=damage)

    async def attempted(self, folder: Path) -> Attempt:
        """The attempt at what lies in the folder, once it is over."""
        found: list[Attempt] = []

        def is_there() -> bool:
            found[:] = [a for a in self.attempts if a.revision.label == folder.name]
            return bool(found)

        await self.until(is_there)
        return found[-1]

    def client(self) -> httpx.AsyncClient:
        return client_of(self.socket)

    async def ask(self, prompt: str = PROMPTS[0]) -> dict[str, Any]:
        async with self.client() as client:
            answer = await client.post("/generate", json=request_for(prompt))
            assert answer.status_code == 200, answer.text
            return dict(answer.json())


def client_of(socket: Path) -> httpx.AsyncClient:
    """Who asks the daemon behind this socket."""
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    return httpx.AsyncClient(transport=transport, base_url="http://hotreload", timeout=PATIENCE)


async def post(running: Running, route: str, **fields: Any) -> httpx.Response:
    """Ask for one of the operator's things."""
    async with running.client() as client:
        return await client.post(f"/admin/{route}", json=fields)


def request_for(prompt: str, **more: Any) -> dict[str, Any]:
    return {"text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 12}, **more}


class Asked(Protocol):
    """A daemon, in this process or in one of its own."""

    def client(self) -> AbstractAsyncContextManager[httpx.AsyncClient]: ...


PAUSE = 0.05
"""Between an answer and the next request: clients that never pause keep all processors busy, and
what goes on beside them takes twice as long. It is shorter than most answers."""


@dataclass
class Load:
    """Clients that ask on and on, every third of them streaming; keeps what each was told."""

    running: Asked
    clients: int = 16
    pause: float = PAUSE
    """Seconds between an answer and the next request."""
    answers: list[tuple[int, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def on(self) -> AsyncIterator["Load"]:
        enough = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for number in range(self.clients):
                tasks.create_task(self._client(number, enough))
            try:
                yield self
            finally:
                enough.set()

    async def _client(self, number: int, enough: asyncio.Event) -> None:
        prompts = itertools.cycle(PROMPTS[number % len(PROMPTS) :] + PROMPTS)
        async with self.running.client() as client:
            while not enough.is_set():
                try:
                    is_stream = number % 3 == 0
                    ask = self._stream if is_stream else self._whole
                    self.answers.append(await ask(client, next(prompts)))
                except Exception as failure:
                    self.failures.append(f"{type(failure).__name__}: {failure}")
                await asyncio.sleep(self.pause)

    async def _whole(self, client: httpx.AsyncClient, prompt: str) -> tuple[int, str]:
        answer = await client.post("/generate", json=request_for(prompt))
        answer.raise_for_status()
        content = answer.json()
        assert answer.headers["X-Hotreload-Generation"] == str(content["meta_info"]["generation"])
        return content["meta_info"]["generation"], content["text"]

    async def _stream(self, client: httpx.AsyncClient, prompt: str) -> tuple[int, str]:
        chunks: list[dict[str, Any]] = []
        ended = False
        body = request_for(prompt, stream=True)
        async with client.stream("POST", "/generate", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    ended = True
                elif line:
                    chunks.append(json.loads(line.removeprefix("data: ")))
        assert ended, "a stream without its end"
        generations = {chunk["meta_info"]["generation"] for chunk in chunks}
        assert len(generations) == 1, f"one stream, several generations: {generations}"
        return generations.pop(), chunks[-1]["text"]


def mixed(answers: list[tuple[int, str]], generations: list[Generation]) -> list[tuple[int, str]]:
    """Answers whose text is not exactly what the generation named in them says."""
    steps = [each for each in generations if not each.revision.is_noise]  # noise says anything
    return not_said_by(answers, {each.number: each.revision.label for each in steps})


def not_said_by(answers: list[tuple[int, str]], labels: Mapping[int, str]) -> list[tuple[int, str]]:
    """The same, by the label that each generation has."""
    says = {number: words(int(label.rpartition("_")[2])) for number, label in labels.items()}
    return [(number, text) for number, text in answers if says.get(number) != text]
