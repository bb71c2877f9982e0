"""GET /health_generate: does the engine make a token?"""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing

from hotreload.server.http.problems import Refused
from hotreload.server.ports import Gate

HEALTHY_SECONDS = 20.0
"""The longest wait for a token, as SGLang's."""
ONE_TOKEN = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1, "temperature": 0}}


class OneToken[P]:
    """Asks the engine for one token, whoever wants to know: at most one is under way at a time.

    No client's leaving ends it, and no time limit does: what it waits for may be a compilation.
    """

    def __init__(
        self,
        gate: Gate[P],
        last_token_at: Callable[[], float],
        within: float = HEALTHY_SECONDS,
    ) -> None:
        """`last_token_at` says when, by the monotonic clock, a client was given a token last."""
        self._gate = gate
        self._last_token_at = last_token_at
        self._within = within
        self._asking: asyncio.Task[None] | None = None

    async def wait_for_token(self) -> None:
        """Wait for a token; NotServing while there is nobody to make one, Refused if none comes."""
        began = time.monotonic()
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(), name="one token")
            self._asking.add_done_callback(_mark_error_seen)
        done, _ = await asyncio.wait({self._asking}, timeout=self._within)
        if done:
            return self._asking.result()
        if self._last_token_at() < began:
            words = f"no token was made within {self._within:g} s; the engine may be compiling"
            raise Refused(503, "no_token", words, headers={"Retry-After": "5"})

    async def _ask(self) -> None:
        with self._gate.lend_preparer() as preparer:
            prepared = await preparer.prepare(ONE_TOKEN)
        async with (
            self._gate.inspect() as lease,
            aclosing(lease.engine.generate(prepared, lease.weights)) as answers,
        ):
            await anext(answers)


def _mark_error_seen(asking: asyncio.Task[None]) -> None:
    """Count its error as seen, also when all who wanted to know have left."""
    if not asking.cancelled():
        asking.exception()
