"""The clients of the demo, who keep every answer and every failure."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hotreload.cli.client import DaemonClient
from hotreload.errors import HotReloadError

Fields = dict[str, Any]


@dataclass
class Clients:
    """Each asks again as soon as it is answered, every other one streaming; `answers` keeps all."""

    daemon: DaemonClient
    count: int
    answers: list[tuple[int, str]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    _enough: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def asking(self) -> Iterator["Clients"]:
        """Ask until the end of the block."""
        threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(self.count)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._enough.set()
            for thread in threads:
                thread.join()

    def warm_up(self) -> None:
        """Wait until the engine has compiled for this many requests at a time."""
        while len(self.answers) < 10 * self.count and not self.failures:
            time.sleep(0.05)

    def _ask(self, number: int) -> None:
        daemon, prompt = self.daemon, f"Client {number} asks: who serves?"
        while not self._enough.is_set():
            try:
                if number % 2:
                    answer = daemon.ask("POST", "/generate", request_for(prompt)).fields
                else:
                    *_, answer = daemon.events("POST", "/generate", request_for(prompt, True))
                self.answers.append((answer["meta_info"]["generation"], answer["text"]))
            except (HotReloadError, KeyError, ValueError) as failure:
                self.failures.append(f"{type(failure).__name__}: {failure}")


def request_for(prompt: str, stream: bool = False) -> Fields:
    """A greedy request."""
    return {
        "text": prompt,
        "sampling_params": {"temperature": 0, "max_new_tokens": 16},
        "stream": stream,
    }
