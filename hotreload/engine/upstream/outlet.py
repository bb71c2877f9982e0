"""The way of what the scheduler thread tells of answers, to our loop.

Upstream pickles it into a socket to a thread that decodes it, and that into another to the loop.
Here the loop is handed the objects, and the text is made where it is told (`answering.wording`).
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Hear = Callable[[Any], None]

REPLACED = ("send_to_detokenizer", "send_to_tokenizer")


class Outlet:
    """Stands where the scheduler has its sockets to the detokenizer and the tokenizer manager."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hear: Hear = _nothing

    def replace_sockets(self, scheduler: Any) -> None:
        """Take the sockets' place, before the thread begins. Ranks above 0 have none."""
        import zmq

        for name in REPLACED:
            if isinstance(socket := getattr(scheduler, name), zmq.Socket):
                socket.close(linger=0)
                setattr(scheduler, name, self)

    def begin(self, hear: Hear) -> None:
        """Let the running loop hear of each message from now on."""
        self._loop, self._hear = asyncio.get_running_loop(), hear

    def end(self) -> None:
        """Let nobody hear of what comes now, or is on its way."""
        self._hear = _nothing

    def send_pyobj(self, message: Any) -> None:
        """Take a message, by upstream's word for it, on the scheduler thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._deliver, message)

    def _deliver(self, message: Any) -> None:
        self._hear(message)


def _nothing(message: Any) -> None:
    """Let it go: nobody waits."""
