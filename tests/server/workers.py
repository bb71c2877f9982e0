"""A worker in the loop of the test: all of it but its process."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from hotreload.server.app import AppRules, create_worker_app
from hotreload.server.http.http_server import HttpServer
from hotreload.server.http.limits import CounterMemory
from hotreload.server.model import Model
from hotreload.server.model_routes import is_model_request
from hotreload.server.ports import Encoder, Metrics, OtherProcess
from hotreload.server.workers.handover import HandoverChannel
from hotreload.server.workers.messages import Message, MessageKind, Wire
from hotreload.server.workers.remote_model import WorkerRequests
from hotreload.server.workers.worker import Worker
from hotreload.server_limits import Limits
from hotreload.types import Generation

HERE, THERE = 0, 1


class WorkerInLoop(OtherProcess):
    """To the server it is the other process; it speaks by real sockets."""

    def __init__(self) -> None:
        self.numbers = CounterMemory.create(2)
        self.counts = self.numbers.of(HERE)
        self.handed = 0
        """Connections that it was given."""
        self.given_back = 0
        self.encoder: Encoder | None = None
        """What it makes when it is told what encodes prompts."""
        self._is_shut_down = True
        self._worker: Worker | None = None
        self._settled = asyncio.Event()
        self._handing: HandoverChannel | None = None
        self._wire: Wire | None = None

    def is_for(self, head: bytes) -> bool:
        return self._handing is not None and bool(is_model_request(head))

    def hand_over(self, descriptor: int, data: bytes) -> bool:
        assert self._handing is not None
        self.handed += 1
        return self._handing.hand_over(descriptor, data)

    def make_room(self, *, is_local: bool) -> bool:
        theirs = self.numbers.of(THERE)
        if self._wire is None or theirs.connections - theirs.running.own <= 0:
            return False
        self._wire.send(MessageKind.MAKE_ROOM, is_local)
        return True

    def shut_down(self) -> None:
        if self._wire is not None:
            self._wire.send(MessageKind.SHUT_DOWN)

    @property
    def is_shut_down(self) -> bool:
        return self._is_shut_down

    def send_live(self, generation: Generation | None) -> None:
        if self._wire is not None:
            self._wire.send(MessageKind.LIVE, generation)

    def send_encoder(self, name: str) -> None:
        if self._wire is not None:
            self._wire.send(MessageKind.ENCODER, name, b"")

    @property
    def connections(self) -> set[Any]:
        """The connections that it answers."""
        return set(self._worker._http.server_state.connections) if self._worker else set()

    async def settle(self) -> None:
        """Wait until all that it has told so far is heeded."""
        if self._wire is not None and not self._wire.is_over:
            self._settled.clear()
            self._wire.send(MessageKind.PING, 0)
            await self._settled.wait()

    def lose(self) -> None:
        """End the connection, as the end of the engine's process does."""
        assert self._wire is not None
        self._wire.close()

    @asynccontextmanager
    async def run_for(
        self,
        server: HttpServer,
        *,
        model: Model,
        metrics: Metrics,
        limits: Limits,
        live: Generation | None,
        rules: AppRules = AppRules(),  # noqa: B008  # it is frozen
    ) -> AsyncIterator[None]:
        """Let it answer in the block, for `server`, by the rules of its app."""
        ours, theirs = socket.socketpair()
        way, their_way = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        worker = self._worker = Worker(
            limits=limits,
            counts=self.numbers.of(THERE),
            make_app=partial(create_worker_app, rules),
            apply_settings=lambda fields: None,
            make_encoder=lambda name, data: self.encoder,
            graces=(1.0, 0.0),
        )

        def receive(message: Message) -> None:
            asked.receive(message)
            if message[0] == MessageKind.ALIVE:
                self._settled.set()

        wire = self._wire = Wire(receive, lambda: None)
        asked = WorkerRequests(wire, model, metrics)
        working = asyncio.create_task(worker.run(theirs, their_way), name="a worker")
        working.add_done_callback(lambda _: self._note_gone())
        await asyncio.get_running_loop().connect_accepted_socket(lambda: wire, ours)
        adopting: list[asyncio.Task[None]] = []

        def take_back(connection: socket.socket, data: bytes) -> None:
            self.given_back += 1
            adopting.append(asyncio.create_task(server.adopt(connection, data)))

        self.send_live(live)
        self._is_shut_down, self._handing = False, HandoverChannel(way, take_back)
        try:
            yield
        finally:
            self.shut_down()
            await working
            asked.cancel_all()
            self._handing.close()
            wire.close()

    def _note_gone(self) -> None:
        self._is_shut_down = True
