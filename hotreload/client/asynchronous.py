"""The client for programs that run in an event loop: each call takes a thread of its own."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import partial, wraps
from typing import Any, Concatenate

from hotreload.client.synchronous import Client
from hotreload.facts.names import DEFAULT_SOCKET
from hotreload.picture.words import Fields


def _in_thread[**P, T](
    call: Callable[Concatenate[Client, P], T],
) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, T]]:
    """Return the method that runs this one of `Client` in a thread."""

    @wraps(call)
    async def run(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        client = await asyncio.to_thread(self._make)  # reads the files of the CA and the key
        try:
            return await asyncio.to_thread(lambda: call(client, *args, **kwargs))
        except asyncio.CancelledError:
            client.break_off()
            raise

    return run


class AsyncClient:
    """Does what `Client` does; a call that is cancelled breaks its request off."""

    def __init__(
        self,
        where: str | os.PathLike[str] = DEFAULT_SOCKET,
        *,
        key: str | None = None,
        key_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> None:
        """As for `Client`."""
        self._make = partial(Client, where, key=key, key_file=key_file, ca_file=ca_file)
        self._make()  # raises now what a call would raise

    status = _in_thread(Client.status)
    wait_for = _in_thread(Client.wait_for)
    reload = _in_thread(Client.reload)
    rollback = _in_thread(Client.rollback)
    pin = _in_thread(Client.pin)
    unpin = _in_thread(Client.unpin)

    async def events(self) -> AsyncGenerator[Fields]:
        """Yield each event from now on, until the daemon stops."""
        client = await asyncio.to_thread(self._make)
        events = client.events()
        try:
            while (event := await asyncio.to_thread(next, events, None)) is not None:
                yield event
        finally:
            client.break_off()
