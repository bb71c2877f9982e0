"""Compiles for the first requests: batches of the usual sizes, and long prompts.

A program is compiled when a batch of a new size first comes, and every request waits for it. This
module has it compiled before, beside requests and without computing anything. An engine that cannot
do that is asked such batches before any request is admitted.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass

from hotreload import failpoints
from hotreload.core.engines.replica import Replica
from hotreload.core.progress import AttemptProgress, publish_progress
from hotreload.engine.capabilities import EngineLimits
from hotreload.errors import AnswerNonfinite, EngineLost
from hotreload.events import Publish, Warmup
from hotreload.facts.heap import collect_seldom, keep_what_is_there
from hotreload.life.running_engine import RunningEngine
from hotreload.types import HowFar, Phase

log = logging.getLogger("hotreload.boot")

WARMING_PROMPT = 3
"""Tokens of a prompt, where only the count of prompts matters."""
ANSWER_TOKENS = 8
"""Tokens of each answer, enough for all answers of a batch to run together for a while."""
LONGER = (96, 192, 384)
"""Tokens of longer prompts: engines pad them to 128, 256 and 512."""
LONGEST = 4096
"""The most tokens computed at a time by upstream's default: sizes to compile end here."""


async def compile_behind(
    replica: Replica[RunningEngine],
    *,
    changing: asyncio.Lock,
    most: int,
    within: float,
    publish: Publish,
) -> None:
    """Have an engine that serves compile for batches of up to `most` requests.

    Until then it admits only as many requests at a time as compiled sizes hold. After the first
    size, which lets more requests run together, an attempt goes before compiling: no size is begun
    while `changing` is held, nor after `within` seconds of compiling.
    """
    engine = replica.engine
    engine.ahead.keep_to_compiled(most > 0)
    sizes = engine.ahead.sizes_to_compile(most, LONGEST)
    done, spent, maker = 0, 0.0, f"warming {replica.index}"
    collect_seldom(maker)  # JAX traces a model for each size, and keeps all of it
    try:
        while done < len(sizes) and spent < within:
            publish(Warmup(replica.index, done, len(sizes)))
            await failpoints.reach(Phase.WARMING)
            if done and not sizes[done].is_shadow:  # an attempt needs its shadow's size itself
                async with changing:
                    pass
            began = time.monotonic()
            size = sizes[done]
            if not await _is_done(engine.ahead.compile_for(size), size=size):
                break
            done, spent = done + 1, spent + time.monotonic() - began
    finally:
        engine.ahead.keep_to_compiled(False)
        keep_what_is_there(maker)
        publish(Warmup(replica.index, done, len(sizes), is_over=True))
    if sizes:
        facts = {"sizes": done, "of": len(sizes), "seconds": round(spent, 3)}
        log.info("boot.warmed", extra={**facts, "replica": replica.index})


async def _is_done(work: Awaitable[None], **about: object) -> bool:
    """Do the work, and return whether it was done; a fault is logged.

    Without it the first such requests wait a little: no reason to end.
    """
    try:
        await work
    except EngineLost:
        raise
    except Exception as fault:
        told = {name: str(each) for name, each in about.items()}
        log.warning("boot.not_warmed", extra={**told, "why": str(fault)})
        return False
    return True


# --- by asking -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch to ask: the count of prompts, and their tokens."""

    prompts: int
    tokens: int

    def request(self, vocabulary: int) -> dict[str, object]:
        """Make the request; its prompts begin differently, so no cached prefix shortens them."""
        first = range(self.tokens * 31, self.tokens * 31 + self.prompts)
        ids = [
            [(begin + at) % (vocabulary - 1) + 1 for at in range(self.tokens)] for begin in first
        ]
        params = {"temperature": 0.0, "max_new_tokens": ANSWER_TOKENS, "ignore_eos": True}
        return {"input_ids": ids, "sampling_params": params}


def batches(limits: EngineLimits, most: int) -> Iterator[Batch]:
    """The batches to compile for: of 1, 2, 4 … prompts at a time up to `most`, and of longer ones.

    They are those that upstream pads others to. None for `most` = 0.
    """
    largest = min(most, limits.at_once)
    size = 1
    while size < largest:
        yield Batch(size, WARMING_PROMPT)
        size *= 2
    if largest:
        yield Batch(largest, WARMING_PROMPT)
        for tokens in LONGER:
            longest = max(1, limits.input_tokens - ANSWER_TOKENS)
            prompts = -(-tokens // longest)  # where one is not let in whole
            yield Batch(prompts, tokens // prompts)


async def warm(
    engine: RunningEngine, progress: AttemptProgress, *, most: int, within: float
) -> None:
    """Have the engine compile for batches of up to `most` prompts.

    None is begun after `within` seconds. Nothing of what was asked stays in the engine.
    """
    wanted = list(batches(engine.answers.limits, most)) if most else []
    if not wanted:
        return
    began, compiled, done = time.monotonic(), engine.recompiles, 0
    async with (
        progress.phase(Phase.WARMING),
        publish_progress(
            lambda: HowFar(done, len(wanted)), progress.revision, progress.publish, Phase.WARMING
        ),
    ):
        for batch in wanted:
            if time.monotonic() - began >= within:
                break
            if not await _is_done(_ask(engine, batch), batch=batch):
                break
            done += 1
        await engine.switch.scrub()
    spent = {"seconds": round(time.monotonic() - began, 3)}
    counted = {"batches": done, "of": len(wanted), "compiled": engine.recompiles - compiled}
    log.info("boot.warmed", extra={**counted, **spent})


async def _ask(engine: RunningEngine, batch: Batch) -> None:
    """Ask a batch; what the answers are like is for the probe to judge."""
    with suppress(AnswerNonfinite):
        asked = await engine.answers.prepare(batch.request(engine.answers.limits.vocabulary))
        async with aclosing(engine.answers.generate(asked)) as answers:
            async for _ in answers:
                pass
