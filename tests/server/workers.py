"""A worker in the loop of the test: all of it but its process."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI

from hotreload.server.http.http_server import HttpServer
from hotreload.server.http.shared_counters import NumbersInMemory
from hotreload.server.model import Model
from hotreload.server.ports import Encoder, Metrics
from hotreload.server.workers import message_kinds
from hotreload.server.workers.app import create_worker_app
from hotreload.server.workers.handover import Handing
from hotreload.server.workers.message_kinds import Word
from hotreload.server.workers.routing import asks_the_model
from hotreload.server.workers.wire import Message, Wire
from hotreload.server.workers.worker import Worker
from hotreload.server.workers.worker_requests import AskedByWorker
from hotreload.server_limits import Limits
from hotreload.types import Generation

HERE, THERE = 0, 1


class WorkerInLoop:
    """To the server it is the other process; it speaks by real sockets."""

    def __init__(self) -> None:
        self.numbers = NumbersInMemory.made(2)
        self.counts = self.numbers.of(HERE)
        self.handed = 0
        """Connections that it was given."""
        self.given_back = 0
        self.encoder: Encoder | None = None
        """What it makes when it is told what encodes prompts."""
        self.is_gone = True
        self._worker: Worker | None = None
        self._settled = asyncio.Event()
        self._handing: Handing | None = None
        self._wire: Wire | None = None

    def is_for(self, head: bytes) -> bool:
        return self._handing is not None and bool(asks_the_model(head))

    def hand_over(self, descriptor: int, data: bytes) -> bool:
        assert self._handing is not None
        self.handed += 1
        return self._handing.hand_over(descriptor, data)

    def make_room(self, *, is_local: bool) -> bool:
        theirs = self.numbers.of(THERE)
        if self._wire is None or theirs.connections - theirs.running.own <= 0:
            return False
        self._wire.tell(Word.MAKE_ROOM, is_local)
        return True

    def go(self) -> None:
        if self._wire is not None:
            self._wire.tell(Word.GO)

    def tell_live(self, generation: Generation | None) -> None:
        if self._wire is not None:
            self._wire.tell(Word.LIVE, message_kinds.generation_parts(generation))

    def tell_encoder(self, name: str) -> None:
        if self._wire is not None:
            self._wire.tell(Word.ENCODER, name, b"")

    @property
    def connections(self) -> set[Any]:
        """The connections that it answers."""
        return set(self._worker._http.server_state.connections) if self._worker else set()

    async def settled(self) -> None:
        """Wait until all that it has told so far is heeded."""
        if self._wire is not None and not self._wire.is_over:
            self._settled.clear()
            self._wire.tell(Word.PING, 0)
            await self._settled.wait()

    def lose(self) -> None:
        """End the connection, as the end of the engine's process does."""
        assert self._wire is not None
        self._wire.close()

    @asynccontextmanager
    async def running(
        self,
        server: HttpServer,
        *,
        model: Model,
        metrics: Metrics,
        limits: Limits,
        live: Generation | None,
        **round_it: Any,
    ) -> AsyncIterator[None]:
        """Let it answer in the block, for `server`; `round_it` is what stands round its routes."""
        ours, theirs = socket.socketpair()
        way, their_way = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        settings = {"wants": None, "hosts": (), "origins": (), "access_log": False, **round_it}
        make: Callable[..., FastAPI] = partial(create_worker_app, name="model", **settings)
        worker = self._worker = Worker(
            limits=limits,
            counts=self.numbers.of(THERE),
            make_app=make,
            heed=lambda fields: None,
            make_encoder=lambda name, data: self.encoder,
            graces=(1.0, 0.0),
        )

        def hear(message: Message) -> None:
            asked.hear(message)
            if message[0] == Word.ALIVE:
                self._settled.set()

        wire = self._wire = Wire(hear, lambda: None)
        asked = AskedByWorker(wire, model, metrics)
        working = asyncio.create_task(worker.run(theirs, their_way), name="a worker")
        working.add_done_callback(lambda _: self._note_gone())
        await asyncio.get_running_loop().connect_accepted_socket(lambda: wire, ours)
        adopting: list[asyncio.Task[None]] = []

        def take_back(connection: socket.socket, data: bytes) -> None:
            self.given_back += 1
            adopting.append(asyncio.create_task(server.adopt(connection, data)))

        self.tell_live(live)
        self.is_gone, self._handing = False, Handing(way, take_back)
        try:
            yield
        finally:
            self.go()
            await working
            asked.abandon()
            self._handing.close()
            wire.close()

    def _note_gone(self) -> None:
        self.is_gone = True
