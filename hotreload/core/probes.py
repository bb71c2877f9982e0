"""Asks the probes within a time, and judges the answers."""

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
    """The probes got no answer in time; first suspect the engine, not the weights."""


def probe_evidence(outcome: str) -> Evidence:
    """Make the evidence of probes that were asked."""
    return Evidence(PROBE, outcome, facts={"unproven": None})


def unproven_evidence(why: str) -> Evidence:
    """Make the evidence of probes that could not be asked."""
    return Evidence(PROBE, "unproven", why, {"unproven": why})


@asynccontextmanager
async def limit_probes(seconds: float, setting: str = "") -> AsyncIterator[None]:
    """Give the probes of this block so long; no answer in time is a bad answer.

    `setting` names the setting that gives them longer.
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
    """Ask the live weights the probes; return the verdict on bad answers, or None.

    `briefly` asks for the beginning of each answer alone.
    """
    try:
        async with limit_probes(within, setting):
            await engine.unseen.probe(briefly=briefly)
    except (EngineLost, TryAgain):
        raise
    except Exception as bad:
        return as_verdict(bad)
    return None


def as_verdict(bad: Exception) -> CheckpointRejected:
    """Return why the weights are rejected; any error of a probe counts as a bad answer."""
    if isinstance(bad, CheckpointRejected):
        return bad
    return ProbeFailed(f"the probe broke: {type(bad).__name__}: {bad}")
