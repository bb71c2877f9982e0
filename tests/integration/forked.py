"""A life of the daemon that is forked from a process which has imported all it needs."""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO

from hotreload.sources.hub.client import TURNED_OFF
from tests.integration.zygote import OF_WORDS, REAL

READ_AT_IMPORT = ("HF_", "JAX_", "PYTHON", "TF_")
"""How the names of variables begin that are read before a fork."""
SET_BY_IMPORTS = (*TURNED_OFF, "TF_CPP_MIN_LOG_LEVEL")
"""Set by our client of a hub and by JAX, if nobody has: in a life as in a process of tests."""


def _read_at_import() -> dict[str, str]:
    """The variables that count."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(READ_AT_IMPORT) and name not in SET_BY_IMPORTS
    }


AT_FIRST = _read_at_import()
"""As they were before the first test, whatever a test has set when it is the first to fork."""
STDOUT = 1
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
"""Else numpy begins a pool of threads when it is imported."""


class Forked:
    """What of a `Popen` the tests ask of a life."""

    def __init__(self, pid: int, channel: socket.socket) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._channel = channel

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended: its exit code, or the signal that ended it, negated."""
        if self.returncode is None:
            if not select.select([self._channel], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("hotreload serve", timeout or 0)
            self.returncode = _number(self._channel)
            self._channel.close()
        return self.returncode

    def poll(self) -> int | None:
        """Its exit code, or None while it lives."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it lives."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


class Zygote:
    """The process that is forked: one for engines of words, and one for all others."""

    def __init__(self, kind: str) -> None:
        self._control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.zygote", kind, str(its.fileno())],
                pass_fds=[its.fileno()],
                env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, **ONE_THREAD},
            )
        atexit.register(self._end)

    def begin(
        self,
        command: str,
        arguments: Sequence[str],
        environ: dict[str, str],
        log: IO[bytes],
        *,
        folder: Path | None = None,
        out: IO[bytes] | None = None,
    ) -> Forked:
        """Fork a life that runs the command with these arguments and logs there."""
        life = {
            "command": command,
            "arguments": list(arguments),
            "environ": environ,
            "folder": str(folder or Path.cwd()),
        }
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            files = [its.fileno(), out.fileno() if out else STDOUT, log.fileno()]
            socket.send_fds(self._control, [json.dumps(life).encode()], files)
        return Forked(_number(ours), ours)

    def _end(self) -> None:
        self._control.close()
        self._process.wait()


def zygote_of(command: str) -> Zygote:
    """The one of this process of tests; it begins in the environment of before the first test."""
    return _zygote(OF_WORDS if command == OF_WORDS else REAL)


@cache
def _zygote(kind: str) -> Zygote:
    return Zygote(kind)


def would_import_the_same() -> bool:
    """Whether an import now would find the environment that the zygotes' did."""
    return _read_at_import() == AT_FIRST


def _number(channel: socket.socket) -> int:
    told = channel.recv(16)
    assert told, "whoever would tell it has ended: its words are on stderr"
    return int(told)
