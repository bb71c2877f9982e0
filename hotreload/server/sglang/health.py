"""GET /health_generate: whether the engine makes a token."""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing

from hotreload.server.http.problems import Refused
from hotreload.server.ports import Entrance

HEALTHY_SECONDS = 20.0
"""The longest wait for a token, the same as SGLang's."""
ONE_TOKEN_REQUEST = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1, "temperature": 0}}


class HealthProbe[P]:
    """Requests one token from the engine for all callers; one such request runs at a time.

    It has no time limit, and goes on when a caller leaves: it may be waiting for a compilation.
    """

    def __init__(
        self,
        entrance: Entrance[P],
        last_token_at: Callable[[], float],
        within: float = HEALTHY_SECONDS,
    ) -> None:
        """`last_token_at` returns when a client was sent a token last, by the monotonic clock."""
        self._entrance = entrance
        self._last_token_at = last_token_at
        self._within = within
        self._probe: asyncio.Task[None] | None = None

    async def wait_for_token(self) -> None:
        """Return once a token is made; NotServing if there is no engine, Refused if none comes."""
        began = time.monotonic()
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._make_token(), name="one token")
            self._probe.add_done_callback(_mark_error_seen)
        done, _ = await asyncio.wait({self._probe}, timeout=self._within)
        if done:
            return self._probe.result()
        if self._last_token_at() < began:
            words = f"no token was made within {self._within:g} s; the engine may be compiling"
            raise Refused(503, "no_token", words, headers={"Retry-After": "5"})

    async def _make_token(self) -> None:
        with self._entrance.lend_preparer() as preparer:
            prepared = await preparer.prepare(ONE_TOKEN_REQUEST)
        async with (
            self._entrance.inspect() as lease,
            aclosing(lease.engine.generate(prepared, lease.weights)) as answers,
        ):
            await anext(answers)


def _mark_error_seen(probe: asyncio.Task[None]) -> None:
    """Read the task's error even if all callers have left: asyncio logs unread errors."""
    if not probe.cancelled():
        probe.exception()
