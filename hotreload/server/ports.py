"""All the server needs of the rest of the daemon, as shapes; nothing here is implemented."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from hotreload.events import Event
from hotreload.types import Attempt, Generation, Noise

Fields = dict[str, Any]
"""A JSON object."""


class Gate(Protocol):
    """What every request passes."""

    def check(self) -> None:
        """NotServing when it lets nobody in."""
        ...

    def passing(
        self, at_least: int = 0, within: float = 0.0
    ) -> AbstractAsyncContextManager[Generation]:
        """Wait while holding, then yield who answers; NotServing when sealed, full or booting.

        An older generation than `at_least` is waited out so long; NotNewEnough when in vain.
        """
        ...


class Engine(Protocol):
    """What answers. Must exist before the boot is over: until then it and the gate refuse."""

    async def prepare(self, request: Mapping[str, Any]) -> Any:
        """Check a request in the engine's own schema and encode its prompts, off the loop.

        Beside that schema it takes `messages`, a chat for the model's template, with
        `template_args`, and `copies`, how often each prompt is to be answered. BadRequest names
        the field at fault.
        """
        ...

    def generate(self, prepared: Any) -> AsyncGenerator[Fields | list[Fields], None]:
        """Yield answers in the engine's own schema; closed or cancelled, it aborts the generation.

        Not streamed: one item, which is a list for a batch. Streamed: one object a chunk with the
        whole `text` so far, and in a batch its `index`. BadRequest comes before any item.
        """
        ...

    async def checksums(self) -> dict[str, int]:
        """Compute the checksum of each live leaf now."""
        ...


class Control(Protocol):
    """Takes an operator's wish, or raises Busy, BadRequest or SourceUnavailable.

    The futures may have several waiters and are never cancelled by one of them.
    """

    async def reload(self, name: str | None, *, force: bool) -> asyncio.Future[Attempt]:
        """Ask for a revision; None is the newest."""
        ...

    async def rollback(self, number: int | None) -> asyncio.Future[Attempt]:
        """Ask for a generation that was live before; None is the one before this."""
        ...

    async def perturb(self, noise: Noise) -> asyncio.Future[Attempt]:
        """Ask for noise on what is live."""
        ...

    async def pin(self) -> None:
        """Hold the live generation against the source."""
        ...

    async def unpin(self) -> None:
        """Follow the source again."""
        ...


class View(Protocol):
    """What is known, as JSON fields under the contract's names."""

    def status(self) -> Fields:
        """Everything /status says."""
        ...

    def ready(self) -> tuple[bool, list[str]]:
        """Whether requests are answered, and why not."""
        ...

    def history(self) -> list[Fields]:
        """Attempts, newest first."""
        ...

    def leaves(self) -> Fields:
        """Checksums of what is live and of what was before it; nothing is computed for it."""
        ...

    def attempt(self, attempt: Attempt) -> Fields:
        """One attempt, as in the history."""
        ...

    def event(self, event: Event) -> Fields:
        """One event, its name under `event`."""
        ...

    def live(self) -> Generation | None:
        """Who answers; None while booting."""
        ...


class Metrics(Protocol):
    """Where the server counts."""

    def request_finished(self, route: str, code: int, seconds: float) -> None:
        """A request ended; code 499 when the client went first."""
        ...

    def first_token(self, seconds: float) -> None:
        """The first chunk of a stream came so long after its request."""
        ...

    def tokens(self, count: int) -> None:
        """So many tokens were generated."""
        ...

    def render(self) -> bytes:
        """The page a scraper reads."""
        ...
