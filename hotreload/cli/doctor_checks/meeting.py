"""`hotreload doctor --meet`: the hosts of one engine meet without it, and compare what they have.

Where they do not all come, JAX ends the process without saying who is missing. So they meet by
themselves, on the ports that the engine will use.
"""

import asyncio
import json
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress

from hotreload.hosts.life.agreement import differences
from hotreload.hosts.upstream.joining import Ranks
from hotreload.settings.kinds import ports_of_a_meeting

AGAIN_SECONDS = 0.2
ANSWER_SECONDS = 10.0
"""How long rank 0 may take to answer once its time is over."""
LONGEST = 2**20

Words = Mapping[str, str]
Came = tuple[int, Words, Sequence[int]]
"""A rank, what it has, and the ports of rank 0 that it does not reach."""


async def meet(ranks: Ranks, own: Words, within: float) -> list[str]:
    """Wait for the others for so many seconds; what is wrong then, each in a sentence."""
    if not ranks.leads:
        return await _follow(ranks, own, within)
    host = _Host(ranks, own)
    try:
        return await host.receive(within)
    except OSError as fault:
        why = f"{ranks.address} and the ports after it: {fault.strerror}"
        return [f"rank 0 cannot listen on {why}"]


class _Host:
    """Rank 0 lets the others in, compares, and tells all of them what it found."""

    def __init__(self, ranks: Ranks, own: Words) -> None:
        self._ranks = ranks
        self._own = own
        self._came: list[Came] = []
        self._writers: list[StreamWriter] = []
        self._all_are_here = asyncio.Event()

    async def receive(self, within: float) -> list[str]:
        """Wait until all are here, and tell them what is wrong."""
        with ExitStack() as open_ports:
            for host, port in ports_of_a_meeting(self._ranks.address):
                server = await asyncio.start_server(self._let_in, host, port, limit=LONGEST)
                open_ports.callback(server.close)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all_are_here.wait(), within)
            found = list(compared(self._ranks, self._own, self._came))
            await asyncio.gather(*(self._tell(found, writer) for writer in self._writers))
        return found

    async def _tell(self, found: list[str], writer: StreamWriter) -> None:
        writer.write(f"{json.dumps(found)}\n".encode())
        writer.close()
        with suppress(OSError):  # it has gone by itself
            await asyncio.wait_for(writer.wait_closed(), ANSWER_SECONDS)

    async def _let_in(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._writers.append(writer)
        with suppress(ValueError, TypeError, OSError):  # a stranger, or one that only looks
            rank, theirs, closed = json.loads(await reader.readline())
            self._came.append((int(rank), dict(theirs), list(closed)))
        if {rank for rank, *_ in self._came} >= set(self._ranks.others):
            self._all_are_here.set()


def compared(ranks: Ranks, own: Words, came: Sequence[Came]) -> Iterator[str]:
    """What is wrong with those who came to rank 0, or did not."""
    numbers = [rank for rank, *_ in came]
    for rank in ranks.others:
        if rank not in numbers:
            yield f"rank {rank} has not come"
        if numbers.count(rank) > 1:
            yield f"rank {rank} came more than once: two hosts have this node_rank"
    for rank, theirs, closed in came:
        if rank not in ranks.others:
            yield f"a host came as rank {rank}, of {ranks.count}"
        for difference in differences(own, theirs):
            yield f"rank {rank}: {difference} (here is rank 0)"
        for port in closed:
            yield f"rank {rank} does not reach port {port} of rank 0"


async def _follow(ranks: Ranks, own: Words, within: float) -> list[str]:
    (host, port), *others = ports_of_a_meeting(ranks.address)
    try:
        async with asyncio.timeout(within):
            reader, writer = await _reached(host, port)
            closed = [port for host, port in others if not await _can_reach(host, port)]
    except TimeoutError:
        return [f"rank 0 was not met at {ranks.address} within {within:g} s"]
    try:
        writer.write(f"{json.dumps([ranks.own, dict(own), closed])}\n".encode())
        told = await asyncio.wait_for(reader.readline(), within + ANSWER_SECONDS)
        return [str(each) for each in json.loads(told)]
    except (OSError, ValueError, TimeoutError):
        return [f"it is no `hotreload doctor --meet` that listens at {ranks.address}"]
    finally:
        writer.close()


async def _reached(host: str, port: int) -> tuple[StreamReader, StreamWriter]:
    """Connect, as soon as somebody listens."""
    while True:
        with suppress(OSError):
            return await asyncio.open_connection(host, port, limit=LONGEST)
        await asyncio.sleep(AGAIN_SECONDS)


async def _can_reach(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), ANSWER_SECONDS)
    except OSError:  # a deadline that is over is one, too
        return False
    writer.close()
    return True
