"""The way of the scheduler thread's messages about answers to the event loop.

Upstream pickles a message into a socket to a thread that decodes it, which has another socket to
the loop. Here the loop gets the objects, and makes the text itself (`answering.answer_text`).
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Receive = Callable[[Any], None]

REPLACED = ("send_to_detokenizer", "send_to_tokenizer")


class Outlet:
    """Stands where the scheduler has its sockets to the detokenizer and the tokenizer manager."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._receive: Receive = _ignore

    def replace_sockets(self, scheduler: Any) -> None:
        """Replace the scheduler's sockets, before its thread begins. Ranks above 0 have none."""
        import zmq

        for name in REPLACED:
            if isinstance(socket := getattr(scheduler, name), zmq.Socket):
                socket.close(linger=0)
                setattr(scheduler, name, self)

    def begin(self, receive: Receive) -> None:
        """Deliver each message to `receive` on the running loop from now on."""
        self._loop, self._receive = asyncio.get_running_loop(), receive

    def end(self) -> None:
        """Drop all messages that come from now on, or are on their way."""
        self._receive = _ignore

    def send_pyobj(self, message: Any) -> None:
        """Receive a message on the scheduler thread; upstream calls its sockets so."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: no request waits any more
                self._loop.call_soon_threadsafe(self._deliver, message)

    def _deliver(self, message: Any) -> None:
        self._receive(message)


def _ignore(message: Any) -> None:
    """Drop the message: no request waits."""
