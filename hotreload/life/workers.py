"""Keeps the worker processes, which speak HTTP and render text, and ask this process's model.

A fault of one worker leaves the others and this process alone: only its own clients are cut off,
and another one is started.
"""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hotreload.engine.answering.encoder_copy import EncoderCopy
from hotreload.events import Event, GateChanged, Publish, ReplicaMoved, SettingsRead
from hotreload.life.kept_worker import Descriptors, KeptWorker, WorkerStart, WorkerTerms
from hotreload.life.live_settings import LiveSettings
from hotreload.life.running_engine import RunningEngine
from hotreload.server.http.keys import ApiKeys
from hotreload.server.http.limits import CounterMemory
from hotreload.server.model import Model
from hotreload.server.model_routes import is_model_request
from hotreload.server.ports import Metrics, OtherProcess
from hotreload.server.workers.messages import Message, MessageKind
from hotreload.types import GateState, Generation

Adopt = Callable[[socket.socket, bytes], Awaitable[None]]

FEW_PROCESSORS = 4
"""With so few processors a worker would take as much from the engine as it gives."""
PROCESSORS_A_WORKER = 8
MOST_BY_ITSELF = 8


def counted_workers(wanted: int | Literal["auto"]) -> int:
    """Return the count of workers, from the setting or the machine's processors."""
    if wanted != "auto":
        return wanted
    processors = len(os.sched_getaffinity(0))
    if processors <= FEW_PROCESSORS:
        return 0
    return min(MOST_BY_ITSELF, max(1, processors // PROCESSORS_A_WORKER))


class Encoders:
    """Copies the encoder of the first engine, at first and whenever an engine came or went."""

    def __init__(self, engines: Callable[[], Sequence[RunningEngine]]) -> None:
        """`engines` lists the engines that serve."""
        self._engines = engines
        self._engines_changed = asyncio.Event()
        self.copy: EncoderCopy | None = None
        """The first engine's encoder as of the last look; None if it has none."""

    async def look(self) -> bool:
        """Have each engine copy its encoder, and know prompts encoded by it; return True if it
        changed."""
        before = self.copy
        copies = [await engine.answers.encoder_copy() for engine in self._engines()]
        self.copy = copies[0] if copies else None
        return self.copy != before

    def look_again(self) -> None:
        """Look soon: an engine came or went."""
        self._engines_changed.set()

    async def follow(self, send: Callable[[], None]) -> None:
        """Call `send` each time the encoder has changed, for ever."""
        while True:
            await self._engines_changed.wait()
            self._engines_changed.clear()
            if await self.look():
                send()


@dataclass(eq=False)
class Workers(OtherProcess):
    """All workers; the server of this process hands them connections."""

    wanted: int
    """The count of workers."""
    live_settings: LiveSettings
    keys: Mapping[str, ApiKeys]
    """The valid keys, by the setting that names their file."""
    metrics: Metrics
    live: Callable[[], Generation | None]
    """Return the live generation."""
    engines: Callable[[], Sequence[RunningEngine]]
    """List the engines that serve."""
    publish: Publish

    def __post_init__(self) -> None:
        self._encoders = Encoders(self.engines)
        self._shared = CounterMemory.create(self.wanted + 1)
        self.counts = self._shared.of(0)
        """The counters of limits, with this process's share."""
        self._kept = [KeptWorker(at, self._shared.of(at)) for at in range(1, self.wanted + 1)]
        self._sent_live: Generation | None = None
        self._opened = asyncio.Event()
        self._adopting: set[asyncio.Future[None]] = set()
        self._is_going = False

    async def run(
        self, model: Model, adopt: Adopt, *, graceful_seconds: float, linger_seconds: float
    ) -> None:
        """Start all once the gate opens, and keep them until `shut_down`; return when all ended.

        They ask this model. `adopt` goes on with a connection that one of them gives back.
        """

        def start(index: int, descriptors: Descriptors) -> WorkerStart:
            return WorkerStart(
                self.live_settings.settings,
                self.live_settings.limits,
                self.keys,
                (*descriptors, self._shared.descriptor),
                index,
                len(self._kept) + 1,
                (graceful_seconds, linger_seconds),
            )

        def take_back(connection: socket.socket, data: bytes) -> None:
            adopting = asyncio.ensure_future(adopt(connection, data))
            self._adopting.add(adopting)
            adopting.add_done_callback(self._adopting.discard)

        terms = WorkerTerms(model, self.metrics, self.publish, start, self._first_words, take_back)
        await self._opened.wait()
        if self._is_going or not self._kept:
            return
        async with self._follow_encoders(), asyncio.TaskGroup() as tasks:
            for kept in self._kept:
                tasks.create_task(kept.run(terms), name=f"worker {kept.index}")

    def observe(self, event: Event) -> None:
        """Send the workers the live generation, and the settings when they changed."""
        if isinstance(event, GateChanged) and event.state is GateState.OPEN:
            self._opened.set()
        if isinstance(event, ReplicaMoved):
            self._encoders.look_again()
        if isinstance(event, SettingsRead) and event.error is None:
            self.send_settings()
        if (live := self.live()) is not self._sent_live:
            self._sent_live = live
            self._send(MessageKind.LIVE, live)

    def send_settings(self) -> None:
        """Send the workers the settings and keys now in force."""
        self._send(MessageKind.SETTINGS, self._settings())

    # --- as the server of this process sees them --------------------------------------------------

    def is_for(self, head: bytes) -> bool:
        """Return True if a worker is to answer a request that begins so."""
        return not self._is_going and bool(self._list_serving()) and bool(is_model_request(head))

    def hand_over(self, descriptor: int, data: bytes) -> bool:
        """Hand a connection to the worker with the fewest; False if none takes it now."""
        for kept in sorted(self._list_serving(), key=lambda each: each.connections):
            if kept.hand_over(descriptor, data):
                return True
        return False

    def make_room(self, *, is_local: bool) -> bool:
        """Have the worker with the most idle connections close one; False if there is none."""
        most = max(self._list_serving(), key=lambda each: each.idle, default=None)
        if most is None or most.idle <= 0:
            return False
        most.send(MessageKind.MAKE_ROOM, is_local)
        return True

    def shut_down(self) -> None:
        """Have all workers answer their requests and exit."""
        self._is_going = True
        self._opened.set()
        for kept in self._kept:
            kept.shut_down()

    @property
    def is_shut_down(self) -> bool:
        """True if no worker runs."""
        return not any(kept.runs for kept in self._kept)

    @asynccontextmanager
    async def _follow_encoders(self) -> AsyncIterator[None]:
        """Keep the workers' encoder that of the engines, until the block ends."""
        await self._encoders.look()
        following = asyncio.create_task(
            self._encoders.follow(lambda: self._send(*self._encoder())), name="follow encoders"
        )
        try:
            yield
        finally:
            following.cancel()

    def _first_words(self) -> Iterable[Message]:
        yield [MessageKind.LIVE, self.live()]
        yield [MessageKind.SETTINGS, self._settings()]
        yield self._encoder()
        yield [MessageKind.PING, 0]

    def _encoder(self) -> Message:
        copy = self._encoders.copy
        return (
            [MessageKind.ENCODER, copy.name, copy.data] if copy else [MessageKind.ENCODER, "", b""]
        )

    def _settings(self) -> dict[str, Any]:
        log = self.live_settings.settings.log
        return {
            "limits": asdict(self.live_settings.limits),
            "log": {"level": log.level, "format": log.format},
            "keys": {name: keys.names for name, keys in self.keys.items()},
        }

    def _list_serving(self) -> list[KeptWorker]:
        return [kept for kept in self._kept if kept.serves]

    def _send(self, *message: Any) -> None:
        for kept in self._kept:
            kept.send(*message)
