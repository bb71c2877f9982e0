"""Clients that send no more: most are gone, and some, such as `nc -N` and socat, still read."""

import asyncio
import select
from collections.abc import Callable


class UntilGone:
    """Says when nobody reads at the other end of a connection any more, from which nothing comes.

    asyncio no longer looks at such a connection. A unix socket tells at once, one of TCP when what
    was written to it comes back.
    """

    def __init__(self, transport: asyncio.Transport, gone: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._poll = select.epoll(1)
        ended = select.EPOLLHUP | select.EPOLLERR
        self._poll.register(transport.get_extra_info("socket").fileno(), ended)
        self._loop.add_reader(self._poll.fileno(), gone)

    def close(self) -> None:
        """Look no more."""
        self._loop.remove_reader(self._poll.fileno())
        self._poll.close()
