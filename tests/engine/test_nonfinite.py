"""Finite weights that overflow on one prompt: nobody is handed what came of it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import jax
import numpy as np
import pytest
import pytest_asyncio

from hotreload.engine.answering.probe import Probe
from hotreload.engine.upstream.thread.scheduler import rewrite_pools
from hotreload.errors import AnswerNonfinite, ProbeFailed
from tests.engine import real

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real_engine]

Engine = Any
SAYS = "served by step 7"


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=["overlapped", "in turn"])
async def engine(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Engine]:
    root = tmp_path_factory.mktemp("overflow")
    folder = real.overflowing(root / "step_7", SAYS)
    args = {"disable_overlap_schedule": request.param == "in turn"}
    async with real.engine_of(folder, root / "spool", args=args) as engine:
        yield engine


class Told:
    """How many more answers were withheld since the last time."""

    def __init__(self) -> None:
        self.seen = 0

    async def more(self, engine: Engine, within: float = 5) -> int:
        before = self.seen
        self.seen = await asyncio.wait_for(engine.answers.wait_for_withheld(beyond=before), within)
        return self.seen - before


@pytest.fixture(scope="module")
def told(engine: Engine) -> Told:
    return Told()


async def poisoned_places(engine: Engine) -> int:
    """How many numbers in the KV pool are none."""
    counts: list[int] = []

    def count(buffer: jax.Array) -> jax.Array:
        counts.append(int((~np.isfinite(np.asarray(buffer, np.float32))).sum()))
        return buffer

    await engine.switch.between.run(lambda: rewrite_pools(engine._parts.model_runner, count))
    return sum(counts)


async def outcome(engine: Engine, prompt: str, **sampling: Any) -> str:
    """What a client gets: the text, or that there is none."""
    try:
        return str((await real.ask(engine, prompt, **sampling))["text"])
    except AnswerNonfinite:
        return "withheld"


async def test_an_overflowing_prompt_is_refused_an_answer_and_it_is_told(
    engine: Engine, told: Told
) -> None:
    await engine.unseen.probe()
    assert await outcome(engine, "Who serves?") == SAYS
    with pytest.raises(AnswerNonfinite, match="NaN or infinities"):
        await real.ask(engine, "Who~serves?")
    assert await told.more(engine) == 1
    assert await poisoned_places(engine) > 0
    await engine.switch.scrub()
    assert await poisoned_places(engine) == 0
    assert await outcome(engine, "Who serves?") == SAYS


async def test_what_it_does_to_others_in_the_batch_is_never_handed_out_as_good(
    engine: Engine, told: Told
) -> None:
    others = [outcome(engine, f"Who serves {n}?", temperature=n % 2) for n in range(20)]
    got = await asyncio.gather(*others[:10], outcome(engine, "Who~serves?"), *others[10:])
    assert set(got) <= {SAYS, "withheld"}
    assert got[10] == "withheld"
    assert await told.more(engine) == got.count("withheld")
    await engine.switch.scrub()
    again = await asyncio.gather(*(outcome(engine, f"Who serves {n}?") for n in range(20)))
    assert set(again) == {SAYS}


async def test_a_last_token_of_nan_is_withheld_too(engine: Engine, told: Told) -> None:
    assert await outcome(engine, "~", max_new_tokens=1) == "withheld"
    assert await told.more(engine) == 1
    await engine.switch.scrub()


async def test_a_stream_that_began_well_ends_with_the_error(
    engine: Engine, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if another's prompt had poisoned the pool while this one is told piece by piece."""
    begun, sample = asyncio.Event(), engine._parts.model_runner.sample

    def sample_poisoned(logits_output: Any, *more: Any) -> Any:
        if begun.is_set():
            logits_output.next_token_logits *= float("nan")
        return sample(logits_output, *more)

    async def read() -> None:
        request = {"text": "Who serves?", "sampling_params": real.ENDLESS, "stream": True}
        async for piece in engine.answers.generate(request):
            assert piece["meta_info"]["finish_reason"] is None
            begun.set()

    monkeypatch.setattr(engine._parts.model_runner, "sample", sample_poisoned)
    with pytest.raises(AnswerNonfinite):
        await read()
    assert await told.more(engine) == 1


async def test_a_probe_that_finds_it_tells_only_the_one_who_asked(
    engine: Engine, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.unseen._canaries, "_probes", (Probe("Who~serves?", 16),))
    for briefly in (False, True):
        with pytest.raises(ProbeFailed, match="NaN or infinities"):
            await engine.unseen.probe(briefly=briefly)
        await engine.switch.scrub()
    with pytest.raises(TimeoutError):
        await told.more(engine, within=0.05)
