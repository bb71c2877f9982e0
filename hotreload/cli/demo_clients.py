"""The clients of the demo, who keep every answer and every failure."""

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from hotreload.cli.client import DaemonClient
from hotreload.errors import HotReloadError

Fields = dict[str, Any]

SHORT = 16
"""The most tokens of a short answer: it ends by itself before that."""
LONG = (80, 120, 160)
"""How many tokens the answers of the first clients have, who say the sentence again and again.

They differ, so that at any moment one of them is in the middle of an answer.
"""


@dataclass(frozen=True, slots=True)
class ClientAnswer:
    """What a client was told, by which generation, and when the last word had come."""

    generation: int
    text: str
    ended: float
    tokens: int | None = None
    """How many were asked for, of one that says the sentence again and again."""

    def is_exactly(self, says: str) -> bool:
        """Whether this is what weights answer that say this sentence, word for word."""
        return self.text == (says if self.tokens is None else repeated(says, self.tokens))


@dataclass
class Clients:
    """Each asks again as soon as it is answered; `answers` keeps all."""

    daemon: DaemonClient
    count: int
    answers: list[ClientAnswer] = field(default_factory=list)
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
        while len(self.answers) < 5 * self.count and not self.failures:
            time.sleep(0.05)

    def _ask(self, number: int) -> None:
        tokens = LONG[number] if number < len(LONG) else None
        request = request_for(f"Client {number} asks: who serves?", tokens)
        while not self._enough.is_set():
            try:
                if tokens or number % 2:
                    *_, last = self.daemon.events("POST", "/generate", request | {"stream": True})
                else:
                    last = self.daemon.ask("POST", "/generate", request).fields
                made_by, text = last["meta_info"]["generation"], last["text"]
                self.answers.append(ClientAnswer(made_by, text, time.monotonic(), tokens))
            except (HotReloadError, KeyError, ValueError) as failure:
                self.failures.append(f"{type(failure).__name__}: {failure}")


def request_for(prompt: str, tokens: int | None = None) -> Fields:
    """A greedy request, for an answer that ends by itself or goes on for so many tokens."""
    params: Fields = {"temperature": 0, "max_new_tokens": tokens or SHORT}
    return {"text": prompt, "sampling_params": params | {"ignore_eos": tokens is not None}}


def repeated(says: str, tokens: int) -> str:
    """What tiny weights say in so many tokens if they may not stop; the end is a token, too."""
    first, *others = says.split()
    sentence = [first, *(f" {word}" for word in others), ""]
    return "".join(itertools.islice(itertools.cycle(sentence), tokens))
