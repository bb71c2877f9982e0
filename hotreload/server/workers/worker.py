"""A worker: serves connections that the engine's process hands over, and sends it the requests."""

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import FastAPI

from hotreload.server.http.http_server import HttpServer
from hotreload.server.http.limits import SharedCounters
from hotreload.server.model_routes import is_model_request
from hotreload.server.ports import Encoder, OtherProcess
from hotreload.server.workers.handover import HandoverChannel
from hotreload.server.workers.messages import Message, MessageKind, Wire
from hotreload.server.workers.remote_model import RemoteMetrics, RemoteModel
from hotreload.server_limits import Limits
from hotreload.types import Generation

GRACE_SECONDS = 2.0
"""Seconds in which clients get an error once the engine's process is gone."""


class Worker(OtherProcess):
    """One worker; `run` returns after a shutdown message, or once the engine's process is gone."""

    def __init__(
        self,
        *,
        limits: Limits,
        counts: SharedCounters,
        make_app: Callable[..., FastAPI],
        apply_settings: Callable[[Mapping[str, Any]], None],
        make_encoder: Callable[[str, bytes], Encoder | None],
        graces: tuple[float, float],
    ) -> None:
        """`make_app` builds the app from the model, metrics, limits, counters and live generation.

        `apply_settings` gets the settings that changed. `make_encoder` builds an encoder from its
        name and from the data that the engine's process sends.

        `graces` are the seconds of a shutdown: to answer all requests, and for which a connection
        may be silent.
        """
        self._counts = counts
        self._wire = Wire(self._receive, self._on_engine_gone)
        self._model = RemoteModel(self._wire)
        self._live: Generation | None = None
        self._apply_settings = apply_settings
        self._make_encoder = make_encoder
        self._handover: HandoverChannel | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._http = HttpServer(
            make_app(
                model=self._model,
                metrics=RemoteMetrics(self._wire),
                limits=limits,
                counts=counts,
                live=lambda: self._live,
            ),
            limits=limits,
            graceful_seconds=graces[0],
            linger_seconds=graces[1],
            counts=counts,
            other_process=self,
        )

    async def run(self, wire: socket.socket, handover: socket.socket) -> None:
        """Serve the connections that come on the `handover` socket; exchange messages on `wire`."""
        loop = asyncio.get_running_loop()
        serving = asyncio.create_task(self._http.serve([]), name="answer")
        await asyncio.sleep(0)  # let the server start before the first connection comes
        self._handover = HandoverChannel(handover, self._adopt, lambda: self._counts.adopted.add(1))
        await loop.connect_accepted_socket(lambda: self._wire, wire)
        try:
            await serving
        finally:
            self._handover.close()

    # --- the engine's process, as this worker's server sees it ------------------------------------

    def is_for(self, head: bytes) -> bool:
        """True if the engine's process answers a request that begins with these bytes."""
        return is_model_request(head) is False

    def hand_over(self, descriptor: int, data: bytes) -> bool:
        """Hand a connection back; it waits until the engine's process can receive it."""
        assert self._handover is not None, "no connection comes before"
        self._handover.queue_handover(descriptor, data)
        return True

    # --- messages of the engine's process ---------------------------------------------------------

    def _receive(self, message: Message) -> None:
        match message:
            case [MessageKind.LIVE, live]:
                self._live = live
            case [MessageKind.PING, number]:
                self._wire.send(MessageKind.ALIVE, number)
            case [MessageKind.SETTINGS, fields]:
                self._apply_settings(fields)
            case [MessageKind.ENCODER, name, data]:
                self._model.encoder = self._make_encoder(name, data) if name else None
            case [MessageKind.MAKE_ROOM, is_local]:
                self._http.make_room(is_local=is_local)
            case [MessageKind.SHUT_DOWN]:
                self._http.stop()
            case _:
                self._model.receive(message)

    def _adopt(self, connection: socket.socket, data: bytes) -> None:
        self._counts.adopted.add(1)
        task = asyncio.create_task(self._http.adopt(connection, data), name="adopt")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _on_engine_gone(self) -> None:
        """Fail all requests and stop, because the engine's process is gone."""
        self._model.fail_all()
        self._http.stop(within=GRACE_SECONDS)
