"""A worker: answers connections that the engine's process hands over, and asks it the model."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI

from hotreload.server.http.http_server import HttpServer
from hotreload.server.http.shared_counters import SharedNumbers
from hotreload.server.http.socket_paths import Doors
from hotreload.server.ports import Encoder
from hotreload.server.workers import message_kinds
from hotreload.server.workers.handover import Handing
from hotreload.server.workers.message_kinds import Word
from hotreload.server.workers.remote_model import CountedElsewhere, ModelElsewhere
from hotreload.server.workers.routing import asks_the_model
from hotreload.server.workers.wire import Message, Wire
from hotreload.server_limits import Limits
from hotreload.types import Generation

GRACE_SECONDS = 2.0
"""Time to tell clients that the engine's process is gone."""


class Worker:
    """Its `run` lasts until it is told to go, or the engine's process is gone."""

    def __init__(
        self,
        *,
        limits: Limits,
        counts: SharedNumbers,
        make_app: Callable[..., FastAPI],
        heed: Callable[[Mapping[str, Any]], None],
        make_encoder: Callable[[str, bytes], Encoder | None],
        graces: tuple[float, float],
    ) -> None:
        """`make_app` makes the app, of a model, metrics, limits, numbers and who is live.

        `heed` is called with the settings that changed while it runs. `make_encoder` makes what
        encodes prompts, of its name and of what the engine's process gives for it.

        `graces` are those of its server: the seconds until it has answered who came, once it is to
        go, and those in which a connection may be silent then.
        """
        self._counts = counts
        self._wire = Wire(self._hear, self._lose)
        self._model = ModelElsewhere(self._wire)
        self._live: Generation | None = None
        self._heed = heed
        self._make_encoder = make_encoder
        self._handing: Handing | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._http = HttpServer(
            make_app(
                model=self._model,
                metrics=CountedElsewhere(self._wire),
                limits=limits,
                counts=counts,
                live=lambda: self._live,
            ),
            socket_paths=Doors(lambda event: None),
            limits=limits,
            graceful_seconds=graces[0],
            linger_seconds=graces[1],
            counts=counts,
            elsewhere=self,
        )

    async def run(self, wire: socket.socket, handing: socket.socket) -> None:
        """Answer whoever is handed over on these two sockets."""
        loop = asyncio.get_running_loop()
        serving = asyncio.create_task(self._http.serve([]), name="answer")
        await asyncio.sleep(0)  # its server is there before the first connection comes
        self._handing = Handing(handing, self._adopt, lambda: self._counts.adopted.add(1))
        await loop.connect_accepted_socket(lambda: self._wire, wire)
        try:
            await serving
        finally:
            self._handing.close()

    # --- what of its connections is answered elsewhere --------------------------------------------

    def is_for(self, head: bytes) -> bool:
        """True if the engine's process answers a request that begins so."""
        return asks_the_model(head) is False

    def hand_over(self, descriptor: int, data: bytes) -> bool:
        """Give a connection back; it waits for as long as the engine's process takes none."""
        assert self._handing is not None, "no connection comes before"
        self._handing.hand_over_surely(descriptor, data)
        return True

    def make_room(self, *, is_local: bool) -> bool:
        """There is no other."""
        return False

    def go(self) -> None:
        """The engine's process says itself when it goes."""

    @property
    def is_gone(self) -> bool:
        """True: its own clients alone are answered by a worker."""
        return True

    # --- what it is told --------------------------------------------------------------------------

    def _hear(self, message: Message) -> None:
        match message:
            case [Word.LIVE, parts]:
                self._live = message_kinds.generation_of(parts)
            case [Word.PING, number]:
                self._wire.tell(Word.ALIVE, number)
            case [Word.SETTINGS, fields]:
                self._heed(fields)
            case [Word.ENCODER, name, data]:
                self._model.encoder = self._make_encoder(name, data) if name else None
            case [Word.MAKE_ROOM, is_local]:
                self._http.make_room(is_local=is_local)
            case [Word.GO]:
                self._http.stop()
            case _:
                self._model.hear(message)

    def _adopt(self, connection: socket.socket, data: bytes) -> None:
        self._counts.adopted.add(1)
        task = asyncio.create_task(self._http.adopt(connection, data), name="adopt")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _lose(self) -> None:
        """The engine's process is gone: tell who waits, and go."""
        self._model.lose()
        self._http.stop(within=GRACE_SECONDS)
