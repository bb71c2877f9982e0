"""Keeps one worker process: starts it, checks that it answers, and starts it again."""

import asyncio
import logging
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotreload.events import Publish, WorkerMoved
from hotreload.server.http.keys import ApiKeys
from hotreload.server.http.limits import SharedCounters
from hotreload.server.model import Model
from hotreload.server.ports import Metrics
from hotreload.server.workers.handover import HandoverChannel, OnConnection
from hotreload.server.workers.messages import Message, MessageKind, Wire
from hotreload.server.workers.remote_model import WorkerRequests
from hotreload.server_limits import Limits
from hotreload.settings.sections import Settings
from hotreload.threads import in_thread, wait_at_most

log = logging.getLogger("hotreload.worker")

PACKAGE = Path(__file__).parents[2]
PROGRAM = (
    f"import sys; sys.path[:0] = [{str(PACKAGE)!r}]; "
    "from hotreload.worker_process import main; main()"
)
PING_SECONDS = 1.0
UNANSWERED_PINGS = 10
"""Count of unanswered pings in a row at which a worker counts as hanging."""
PINGS_OF_A_START = 60
"""Count of pings that a worker may leave unanswered before its first answer."""
LONGEST_PAUSE = 30.0
"""Seconds until a worker that fails again and again is started again, at most."""
STEADY_SECONDS = 60.0
"""Seconds of service after which a loss does not count as a failed start."""

Descriptors = tuple[int, int]
WorkerProgram = subprocess.Popen[bytes]


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """The start data of a worker; the daemon pickles it to the worker's input."""

    settings: Settings
    limits: Limits
    keys: Mapping[str, ApiKeys]
    """The valid keys, by the setting that names their file."""
    descriptors: tuple[int, int, int]
    """The worker's ends of the wire and of the handover, and the memory of shared counters."""
    index: int
    processes: int
    graces: tuple[float, float]
    """Seconds for answering its requests at a shutdown, and for waiting for another request on an
    open connection."""


@dataclass(frozen=True, slots=True)
class WorkerTerms:
    """Facts that all workers share."""

    model: Model
    metrics: Metrics
    publish: Publish
    start: Callable[[int, Descriptors], WorkerStart]
    """Make the start data of the worker of this index, which these descriptors reach."""
    first: Callable[[], Iterable[Message]]
    """List the messages that a worker receives first."""
    adopt: OnConnection
    """Continue a connection that a worker gives back."""


class KeptWorker:
    """One place for a worker process, filled by one after another."""

    def __init__(self, index: int, counts: SharedCounters) -> None:
        """`counts` is this worker's share of the shared counters."""
        self.index = index
        self.serves = False
        """True while the worker takes connections."""
        self.runs = False
        """True from before the first start until no other start follows."""
        self._counts = counts
        self._handed = 0
        self._wire: Wire | None = None
        self._handing: HandoverChannel | None = None
        self._pinged = self._answered = 0
        self._going = asyncio.Event()

    async def run(self, terms: WorkerTerms) -> None:
        """Keep a worker running until `go`, and until the last one has answered its requests."""
        self.runs = True
        failures = 0
        try:
            while not self._going.is_set():
                began = time.monotonic()
                try:
                    why = await self._run_worker(terms)
                except Exception as fault:
                    log.warning("worker.failed", exc_info=fault)
                    why = f"it does not start: {type(fault).__name__}: {fault}"
                if self._going.is_set():
                    return
                failures = 1 if time.monotonic() - began > STEADY_SECONDS else failures + 1
                again_in = min(LONGEST_PAUSE, 2.0 ** (failures - 1) - 1)
                terms.publish(WorkerMoved(self.index, is_serving=False, why=why, again_in=again_in))
                await wait_at_most(again_in, self._going)
        finally:
            self.runs = False

    def shut_down(self) -> None:
        """Have the worker answer its requests and exit; no other takes its place."""
        self._going.set()
        self.serves = False
        self.send(MessageKind.SHUT_DOWN)

    def send(self, *message: Any) -> None:
        """Send the worker a message, if there is a worker."""
        if self._wire is not None:
            self._wire.send(*message)

    def hand_over(self, descriptor: int, data: bytes) -> bool:
        """Hand the worker a connection; False if it takes none now."""
        if self._handing is None or not self._handing.hand_over(descriptor, data):
            return False
        self._handed += 1
        return True

    @property
    def connections(self) -> int:
        """Count the worker's connections, with those on their way to it."""
        return self._counts.connections + self._handed - self._counts.adopted.own

    @property
    def idle(self) -> int:
        """Count roughly the worker's connections without a request under way."""
        return self._counts.connections - self._counts.running.own

    async def _run_worker(self, terms: WorkerTerms) -> str:
        """Run one worker from its start to its end; return why it ended."""
        wire, their_wire = socket.socketpair()
        handing, their_handing = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        descriptors = (their_wire.fileno(), their_handing.fileno())
        try:
            with their_wire, their_handing:
                process = await in_thread(
                    lambda _: _start_process(terms.start(self.index, descriptors))
                )
        except BaseException:
            wire.close()
            handing.close()
            raise
        asked = None
        try:
            spoken = self._wire = Wire(
                lambda message: self._receive(message, asked, terms), _ignore
            )
            asked = WorkerRequests(spoken, terms.model, terms.metrics)
            await asyncio.get_running_loop().connect_accepted_socket(lambda: spoken, wire)
            self._handing = HandoverChannel(handing, terms.adopt)
            for message in terms.first():
                self.send(*message)
            if self._going.is_set():  # set while the process started
                self.send(MessageKind.SHUT_DOWN)
            return await self._until_it_ends(process, spoken)
        finally:
            self._end(asked)
            process.kill()
            await _wait_for_end(process)
            process.wait()
            self._counts.reset_own()

    async def _until_it_ends(self, process: WorkerProgram, wire: Wire) -> str:
        self._pinged = self._answered = 0
        ended = asyncio.create_task(_wait_for_end(process))
        try:
            while not (await asyncio.wait({ended}, timeout=PING_SECONDS))[0]:
                unanswered = self._pinged - self._answered
                if unanswered >= (UNANSWERED_PINGS if self._answered else PINGS_OF_A_START):
                    return f"it has answered nothing for {unanswered * PING_SECONDS:g} s"
                self._pinged += 1
                wire.send(MessageKind.PING, self._pinged)
        finally:
            ended.cancel()
        code = process.wait()
        return f"it ended with code {code}" if code >= 0 else f"signal {-code} ended it"

    def _receive(self, message: Message, asked: WorkerRequests | None, terms: WorkerTerms) -> None:
        assert asked is not None, "no message comes before the start"
        match message:
            case [MessageKind.ALIVE, number]:
                self._answered = max(self._answered, number)
                if not (self.serves or self._going.is_set()):
                    self.serves = True
                    terms.publish(WorkerMoved(self.index, is_serving=True))
            case _:
                asked.receive(message)

    def _end(self, asked: WorkerRequests | None) -> None:
        """Close the way to the worker, and drop its requests."""
        self.serves = False
        if asked is not None:
            asked.cancel_all()
        if self._handing is not None:
            self._handing.close()
        if self._wire is not None:
            self._wire.close()
        self._wire = self._handing = None
        self._handed = 0


def _ignore() -> None:
    """Do nothing: the wait for the worker's process returns."""


def _start_process(start: WorkerStart) -> WorkerProgram:
    """Start a worker process and write its start data to its input; blocks.

    By subprocess, as the loop's own way runs libraries' fork handlers: tokenizers warns of that.
    """
    command = (sys.executable, "-P", "-c", PROGRAM)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=start.descriptors)
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:  # it has ended: the wait for its end returns
        process.stdin.write(pickle.dumps(start))
    return process


async def _wait_for_end(process: WorkerProgram) -> None:
    """Wait until the process has ended."""
    if process.poll() is not None:
        return
    ended = asyncio.Event()
    loop, descriptor = asyncio.get_running_loop(), os.pidfd_open(process.pid)
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
