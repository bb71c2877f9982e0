"""Files of secrets that are read again: what they held counts on while they cannot be read."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import NoReturn

from hotreload.errors import ConfigError, NotEnoughMemory
from hotreload.settings.credentials import KEYS, TOKEN, read_keys, read_secret
from hotreload.settings.load import Settings
from hotreload.threads import in_thread
from hotreload.troubles import Trouble

EVERY_SECONDS = 10.0
"""How long a file may be unreadable before it is told."""
PUT_IT_RIGHT = "put the file right: until then what it held before counts"


class SecretFiles:
    """Looks at each file that is read again, and tells of those that cannot be."""

    def __init__(self, reads: Mapping[str, Callable[[], object]], trouble: Trouble) -> None:
        """The names are those of the settings."""
        self._reads = reads
        self._trouble = trouble
        self._asked = asyncio.Event()

    def look_again(self) -> None:
        """Look now."""
        self._asked.set()

    async def watch(self) -> NoReturn:
        """Look every few seconds, for ever."""
        while True:
            for name, read in self._reads.items():
                await self._look(name, read)
            with suppress(TimeoutError):
                async with asyncio.timeout(EVERY_SECONDS if self._reads else None):
                    await self._asked.wait()
            self._asked.clear()

    async def _look(self, name: str, read: Callable[[], object]) -> None:
        try:
            await in_thread(lambda _: read(), leave_as=f"a look at {name}", is_read=False)
        except (ConfigError, NotEnoughMemory) as fault:
            self._trouble.now(str(fault), PUT_IT_RIGHT, of=name)
        else:
            self._trouble.now(None, of=name)


def secret_reads(settings: Settings) -> Mapping[str, Callable[[], object]]:
    """How to read each file that is read again while the daemon runs, by its setting's name."""
    reads: dict[str, Callable[[], object]] = {}
    if (keys := settings.server.api_keys_file) is not None:
        reads[KEYS] = partial(read_keys, keys, KEYS)
    if settings.source.kind == "huggingface" and (token := settings.source.token_file) is not None:
        reads[TOKEN] = partial(read_secret, token, TOKEN)
    return reads
