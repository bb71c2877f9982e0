"""One of two real processes that jax.distributed joins; does what lines on its input ask.

Run as a program it is that process; `in_processes` starts two and asks them.
"""

import json
import os
import random
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from typing import Any

from hotreload.errors import EngineLost
from hotreload.hosts.upstream.ranks import Store

JOIN_SECONDS = 60


class Asked(Store):
    """A store that has a member ask its own; any thread may call."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self.process = process
        self.address = address
        self._numbers = count()
        self._waiting: dict[int, Future[str | None]] = {}
        self._sending = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def put(self, key: str, value: str) -> None:
        self._ask("put", key, value)

    def get(self, key: str, within: float) -> str | None:
        return self._ask("get", key, within)

    def forget(self, key: str) -> None:
        self._ask("forget", key)

    def _ask(self, *words: Any) -> str | None:
        answer: Future[str | None] = Future()
        with self._sending:
            number = next(self._numbers)
            self._waiting[number] = answer
            assert self.process.stdin is not None
            print(json.dumps([number, *words]), file=self.process.stdin, flush=True)
        return answer.result(JOIN_SECONDS)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            number, value, fault = json.loads(line)
            if fault is None:
                self._waiting.pop(number).set_result(value)
            else:
                self._waiting.pop(number).set_exception(EngineLost(fault))


@contextmanager
def in_processes() -> Iterator[list[Asked]]:
    """The store as each of two processes sees it; they are ended by their ids."""
    with ExitStack() as ended:
        address = free_address()
        members = [_started(address, rank, ended) for rank in (0, 1)]
        stores = [Asked(each, address) for each in members]
        for each in stores:
            each.get("nothing", 0.01)  # it has joined
        yield stores


def free_address() -> str:
    """Where rank 0 can be met; upstream takes the fifth and sixth port after it too.

    Below those that a system gives away by itself: lives that follow each other meet there again.
    Not by `random`, which an engine gives the same seed in each process: all would choose the same.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        if all(map(_is_free, (port, port + 5, port + 6))):
            return f"127.0.0.1:{port}"


def _is_free(port: int) -> bool:
    with socket.socket() as asking, suppress(OSError):
        asking.bind(("127.0.0.1", port))
        return True
    return False


def _started(address: str, rank: int, ended: ExitStack) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.hosts.member", address, str(rank)]
    pipe = subprocess.PIPE
    member = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    )
    ended.enter_context(member)
    ended.callback(member.kill)
    return member


def main(address: str, rank: str) -> None:
    """Join the other one, and do what each line asks in a thread of its own."""
    from hotreload.hosts.upstream.ranks import Ranks, Store, join

    join(Ranks(int(rank), 2, address), JOIN_SECONDS)
    store, told = Store(), threading.Lock()

    def do(number: int, name: str, *words: Any) -> None:
        value = fault = None
        try:
            value = getattr(store, name)(*words)
        except EngineLost as lost:
            fault = str(lost)
        with told:
            print(json.dumps([number, value, fault]), flush=True)

    for line in sys.stdin:
        threading.Thread(target=do, args=json.loads(line), daemon=True).start()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
