"""Asks the probes within a time, and says what the answers are worth."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hotreload.core.ports import Engine
from hotreload.errors import CheckpointRejected, EngineLost, ProbeFailed, TryAgain
from hotreload.types import PROBE, Evidence

FIRST_ANSWER_SECONDS = 900.0
"""The first answer compiles the model, which takes minutes on an accelerator."""


ASKED, PASSED = "asked", "passed"
"""The outcomes of the probes; ASKED until they are passed."""


class NoAnswer(ProbeFailed):
    """Nothing was answered in time, which accuses the engine before anything else."""


def probe_evidence(outcome: str) -> Evidence:
    """The evidence of probes that were asked."""
    return Evidence(PROBE, outcome, facts={"unproven": None})


def unproven_evidence(why: str) -> Evidence:
    """The evidence of probes that could not be asked."""
    return Evidence(PROBE, "unproven", why, {"unproven": why})


@asynccontextmanager
async def limit_probes(seconds: float, setting: str = "") -> AsyncIterator[None]:
    """Have the probes of this block answered in time: no answer is a bad one.

    `setting` is what would give them longer.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        longer = f" ({setting})" if setting else ""
        raise NoAnswer(f"no answer to the probe within {seconds:g} s{longer}") from None


async def ask_probes(
    engine: Engine, within: float, setting: str = "", *, briefly: bool = False
) -> CheckpointRejected | None:
    """Ask the live weights the probes; return what is wrong with the answers, or None.

    `briefly` asks only how the answers begin.
    """
    try:
        async with limit_probes(within, setting):
            await engine.probe(briefly=briefly)
    except (EngineLost, TryAgain):
        raise
    except Exception as bad:
        return as_verdict(bad)
    return None


def as_verdict(bad: Exception) -> CheckpointRejected:
    """Return why the weights are rejected; a probe that breaks in any way is a bad answer."""
    if isinstance(bad, CheckpointRejected):
        return bad
    return ProbeFailed(f"the probe broke: {type(bad).__name__}: {bad}")
