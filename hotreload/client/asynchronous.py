"""The client for programs that run in an event loop: each call takes a thread of its own."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from functools import partial
from pathlib import Path

from hotreload.client.synchronous import STATUS_SECONDS, Client, DaemonAnswer
from hotreload.facts.names import DEFAULT_SOCKET
from hotreload.picture.words import Fields


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

    async def _call[T](self, call: Callable[[Client], T]) -> T:
        client = await asyncio.to_thread(self._make)  # reads the files of the CA and the key
        try:
            return await asyncio.to_thread(call, client)
        except asyncio.CancelledError:
            client.break_off()
            raise

    async def status(self, timeout: float = STATUS_SECONDS) -> Fields:
        """Return the status: the live and the wanted weights, and refusals."""
        return await self._call(lambda client: client.status(timeout))

    async def events(self) -> AsyncGenerator[Fields]:
        """Yield each event from now on, until the daemon stops."""
        client = await asyncio.to_thread(self._make)
        events = client.events()
        try:
            while (event := await asyncio.to_thread(next, events, None)) is not None:
                yield event
        finally:
            client.break_off()

    async def wait_for(self, step: int | str, timeout: float | None = None) -> Fields:
        """Wait until this step or a newer one is live, or the checkpoint of this name."""
        return await self._call(lambda client: client.wait_for(step, timeout))

    async def reload(
        self,
        checkpoint: str | Path | None = None,
        *,
        force: bool = False,
        dry_run: bool = False,
        wait: bool = True,
        timeout: float | None = None,
        reason: str | None = None,
    ) -> DaemonAnswer:
        """Order a checkpoint, or the newest; the answer's `outcome` says what came of it."""
        return await self._call(
            lambda client: client.reload(
                checkpoint,
                force=force,
                dry_run=dry_run,
                wait=wait,
                timeout=timeout,
                reason=reason,
            )
        )

    async def rollback(
        self,
        generation: int | None = None,
        *,
        hold: bool = True,
        timeout: float | None = None,
        reason: str | None = None,
    ) -> DaemonAnswer:
        """Go back to a generation, or to the one before; `hold` pins it."""
        return await self._call(
            lambda client: client.rollback(generation, hold=hold, timeout=timeout, reason=reason)
        )

    async def pin(self, *, timeout: float | None = None, reason: str | None = None) -> DaemonAnswer:
        """Hold the live weights against the source."""
        return await self._call(lambda client: client.pin(timeout=timeout, reason=reason))

    async def unpin(self, *, reason: str | None = None) -> DaemonAnswer:
        """Follow the source again."""
        return await self._call(lambda client: client.unpin(reason=reason))
