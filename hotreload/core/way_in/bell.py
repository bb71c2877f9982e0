"""A bell, which wakes those that wait."""

import asyncio


class Bell:
    """Wakes all who wait for it; each looks again at what he waits for."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake all that wait now."""
        self._rung.set()
        self._rung = asyncio.Event()

    async def wait(self) -> None:
        """Wait until it rings."""
        await self._rung.wait()
