"""Tells when an engine was found to load other weights than upstream's loader would."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import NoReturn

from hotreload.core.ports import Engine
from hotreload.core.replica import Replica
from hotreload.events import LoaderDistrusted, Publish

Distrusted = Callable[[], Awaitable[str]]
"""Wait until our own loader was found to make other weights, and say which."""


async def tell_of_distrust(
    replica: Replica[Engine], *, distrusted: Distrusted, publish: Publish
) -> NoReturn:
    """Publish it once; it stays so until the engine is started anew."""
    publish(LoaderDistrusted(await distrusted(), replica.index))
    await asyncio.Future()
    raise AssertionError("nobody ends what waits for ever")
