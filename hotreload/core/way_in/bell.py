"""A bell that wakes waiting tasks."""

import asyncio


class Bell:
    """Wakes every waiter; each re-checks its condition."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Wake every task that waits now."""
        self._rung.set()
        self._rung = asyncio.Event()

    async def wait(self) -> None:
        """Wait until the bell rings."""
        await self._rung.wait()
