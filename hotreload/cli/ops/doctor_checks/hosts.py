"""Checks of `hotreload doctor` for an engine over several hosts, and their meeting.

With `--meet` the hosts meet on the engine's ports, without the engine, and compare their facts. In
a start JAX would end the process of each host without naming the missing ones.
"""

import asyncio
import json
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from ipaddress import ip_address

from hotreload.cli.ops.doctor_checks.advice import Advice, Facts, not_configured
from hotreload.errors import ConfigError
from hotreload.facts import holders
from hotreload.hosts.life.rank_group import find_differences, list_facts, ranks_of
from hotreload.hosts.upstream.ranks import Ranks
from hotreload.setting import ports_of_a_meeting
from hotreload.threads import wait_at_most

REACH_SECONDS = 3.0
KNOCK_SECONDS = 0.2
REPLY_SECONDS = 10.0
"""The longest wait for rank 0's answer after the end of its own wait."""
LONGEST_LINE = 2**20

Words = Mapping[str, str]
Came = tuple[int, Words, Sequence[int]]
"""A rank that came: its number, its facts, and the ports of rank 0 that it cannot reach."""

ONE_HOST = not_configured("the engine lies on this host alone")


def check_hosts(facts: Facts) -> Advice:
    """Check that the hosts can meet at rank 0's address."""
    ranks = ranks_of(facts.settings)
    if ranks is None:
        return ONE_HOST
    host, port = ports_of_a_meeting(ranks.address)[0]
    try:
        address = socket.getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    except OSError as fault:
        says = f"[engine] dist_init_addr: {host} cannot be resolved: {fault.strerror}"
        return Advice("fail", says, "name the address of rank 0, or have its name resolved")
    return _leads(facts, ranks, str(address)) if ranks.leads else _follows(ranks, str(address))


def check_host_ports(facts: Facts) -> Advice:
    """Check that the ports of a meeting are guarded: a program that reaches them can run code."""
    ranks = ranks_of(facts.settings)
    if ranks is None:
        return ONE_HOST
    (host, first), *others = ports_of_a_meeting(ranks.address)
    ports = f"{first}, {' and '.join(str(port) for _, port in others)}"
    alone = "let the hosts of this engine alone reach them: a network of theirs"
    if facts.settings.engine.join_secret_file is None:
        says = f"ports {ports} of {host} ask for no password, and can run programs on every host"
        return Advice("warn", says, f"set [engine] join_secret_file, and {alone}")
    says = f"ports {ports} of {host} want the join secret; whoever reaches them can still disturb"
    return Advice("ok", f"{says}: {alone}")


def check_meeting(facts: Facts, within: float) -> Advice:
    """Check that all hosts come, and that they share all facts that must be alike."""
    ranks = ranks_of(facts.settings)
    if ranks is None:
        raise ConfigError("--meet is for an engine over several hosts, and [engine] nnodes is 1")
    wrong = asyncio.run(meet(ranks, list_facts(facts.settings), within))
    if wrong:
        todo = "run this on all hosts at once, while their daemons are stopped"
        return Advice("fail", "; ".join(wrong), todo)
    return Advice("ok", f"all {ranks.count} hosts came, and have the same")


def _leads(facts: Facts, ranks: Ranks, address: str) -> Advice:
    if not _is_ours(address):
        says = f"[engine] dist_init_addr: {address} is no address of this host, which is rank 0"
        return Advice("fail", says, "name an address that rank 0 has, or set [engine] node_rank")
    for _, port in ports_of_a_meeting(ranks.address):
        taken = holders.tcp_listener(f"{address}:{port}")
        by = list(holders.holders(taken)) if taken else []
        if taken and not any(each in facts.daemon for each in by):
            who = f" by {', '.join(map(str, by))}" if by else ""
            todo = "end that, or set another [engine] dist_init_addr on all hosts"
            return Advice("fail", f"{address}:{port} is taken{who}", todo)
    if ip_address(address).is_loopback:
        says = f"[engine] dist_init_addr: {address} is reached from this host alone"
        return Advice("warn", says, "name an address that the other hosts reach")
    return Advice("ok", f"rank 0 of {ranks.count} can be met at {ranks.address}")


def _follows(ranks: Ranks, address: str) -> Advice:
    _, port = ports_of_a_meeting(ranks.address)[0]
    who = f"rank {ranks.own} of {ranks.count}"
    try:
        socket.create_connection((address, port), REACH_SECONDS).close()
    except ConnectionRefusedError:
        return Advice("ok", f"{who}: rank 0's host answers, and waits for nobody now")
    except OSError as fault:
        says = f"{who}: {ranks.address} is not reached: {fault}"
        return Advice("warn", says, "see whether rank 0's host runs, and what lies between")
    return Advice("ok", f"{who}: rank 0 can be reached at {ranks.address}")


def _is_ours(address: str) -> bool:
    with suppress(OSError), socket.socket() as there:
        there.bind((address, 0))
        return True
    return False


async def meet(ranks: Ranks, own: Words, within: float) -> list[str]:
    """Meet the other hosts within so many seconds; return a sentence for each fault."""
    if not ranks.leads:
        return await _follow(ranks, own, within)
    host = _Host(ranks, own)
    try:
        return await host.receive(within)
    except OSError as fault:
        why = f"{ranks.address} and the ports after it: {fault.strerror}"
        return [f"rank 0 cannot listen on {why}"]


class _Host:
    """Rank 0's side of the meeting: it compares the other ranks, and sends them the faults."""

    def __init__(self, ranks: Ranks, own: Words) -> None:
        self._ranks = ranks
        self._own = own
        self._came: list[Came] = []
        self._writers: list[StreamWriter] = []
        self._all_are_here = asyncio.Event()

    async def receive(self, within: float) -> list[str]:
        """Wait until all ranks have come; send them the faults, and return these."""
        with ExitStack() as open_ports:
            for host, port in ports_of_a_meeting(self._ranks.address):
                server = await asyncio.start_server(self._admit, host, port, limit=LONGEST_LINE)
                open_ports.callback(server.close)
            await wait_at_most(within, self._all_are_here)
            found = list(compare_ranks(self._ranks, self._own, self._came))
            await asyncio.gather(*(self._send(found, writer) for writer in self._writers))
        return found

    async def _send(self, found: list[str], writer: StreamWriter) -> None:
        writer.write(f"{json.dumps(found)}\n".encode())
        writer.close()
        with suppress(OSError):  # the rank has left already
            await asyncio.wait_for(writer.wait_closed(), REPLY_SECONDS)

    async def _admit(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._writers.append(writer)
        with suppress(ValueError, TypeError, OSError):  # a stranger, or a check of the port
            rank, theirs, closed = json.loads(await reader.readline())
            self._came.append((int(rank), dict(theirs), list(closed)))
        if {rank for rank, *_ in self._came} >= set(self._ranks.others):
            self._all_are_here.set()


def compare_ranks(ranks: Ranks, own: Words, came: Sequence[Came]) -> Iterator[str]:
    """Return the faults of the ranks that reached rank 0, and name those that did not."""
    numbers = [rank for rank, *_ in came]
    for rank in ranks.others:
        if rank not in numbers:
            yield f"rank {rank} has not come"
        if numbers.count(rank) > 1:
            yield f"rank {rank} came more than once: two hosts have this node_rank"
    for rank, theirs, closed in came:
        if rank not in ranks.others:
            yield f"a host came as rank {rank}, of {ranks.count}"
        for difference in find_differences(own, theirs):
            yield f"rank {rank}: {difference} (here is rank 0)"
        for port in closed:
            yield f"rank {rank} does not reach port {port} of rank 0"


async def _follow(ranks: Ranks, own: Words, within: float) -> list[str]:
    (host, port), *others = ports_of_a_meeting(ranks.address)
    try:
        async with asyncio.timeout(within):
            reader, writer = await _connect(host, port)
            closed = [port for host, port in others if not await _can_reach(host, port)]
    except TimeoutError:
        return [f"rank 0 was not met at {ranks.address} within {within:g} s"]
    try:
        writer.write(f"{json.dumps([ranks.own, dict(own), closed])}\n".encode())
        told = await asyncio.wait_for(reader.readline(), within + REPLY_SECONDS)
        return [str(each) for each in json.loads(told)]
    except (OSError, ValueError, TimeoutError):
        return [f"it is no `hotreload doctor --meet` that listens at {ranks.address}"]
    finally:
        writer.close()


async def _connect(host: str, port: int) -> tuple[StreamReader, StreamWriter]:
    """Return a connection, made as soon as a process listens there."""
    while True:
        with suppress(OSError):
            return await asyncio.open_connection(host, port, limit=LONGEST_LINE)
        await asyncio.sleep(KNOCK_SECONDS)


async def _can_reach(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), REPLY_SECONDS)
    except OSError:  # TimeoutError is one, too
        return False
    writer.close()
    return True
