"""Prints in a terminal when the daemon is ready, and at which address."""

import logging
import sys
from collections.abc import Sequence
from ipaddress import ip_address
from socket import AF_UNIX, socket

from hotreload.events import AttemptFinished, Event, GenerationLive
from hotreload.observe.log import LossyHandler


class ReadyLine:
    """One line in plain words, once, as soon as the first weights answer."""

    def __init__(self, sockets: Sequence[socket], metrics: str | None, *, follows: bool) -> None:
        """`metrics` is their address, if they have one; a rank that follows has no attempts."""
        pages_first = sorted(sockets, key=lambda each: each.family == AF_UNIX)
        self._places = ", ".join([*map(_place, pages_first), *_metrics(metrics)])
        self._follows = follows
        self._terminal = LossyHandler(sys.stderr)
        self._is_said = False

    def observe(self, event: Event) -> None:
        """Print once the first weights answer, which is an attempt's last event."""
        match event:
            case AttemptFinished(_, live) if live is not None:
                self._say_once()
            case GenerationLive() if self._follows:
                self._say_once()

    def _say_once(self) -> None:
        if not self._is_said:
            self._is_said = True
            self._terminal.emit(logging.makeLogRecord({"msg": f"\nready: {self._places}\n"}))


def _place(listener: socket) -> str:
    """Say where a socket is reached; a port has the status page."""
    name = listener.getsockname()
    return f"socket {name}" if listener.family == AF_UNIX else f"http://{_at(*name[:2])}/ (page)"


def _metrics(address: str | None) -> list[str]:
    return [f"metrics http://{address}/metrics"] if address else []


def _at(host: str, port: int) -> str:
    """Write an address for a browser of this machine, also where all of them are listened on."""
    if ip_address(host).is_unspecified:
        host = "::1" if ":" in host else "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
