"""Thirty checkpoints of one training under load, of which ten misbehave, each in another way."""

import asyncio
import itertools
import json
import random
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hotreload.attempts import Attempt
from hotreload.events import Warmup
from hotreload.features.bake.evidence import BakeChanged, BakeOutcome
from hotreload.life.acceptance import with_files
from hotreload.tiny import write_tiny
from hotreload.tiny.sayings import BASE_TEXT, TUNED_TEXT
from hotreload.tiny.trainer import TUNED_STEPS
from hotreload.types import Outcome
from tests.bench.test_unnoticed import figures_of
from tests.integration.running import Running
from tests.tiny.conversions import write_wrong

pytestmark = [pytest.mark.soak, pytest.mark.real_engine, pytest.mark.timeout(3600)]

COPY, GIBBERISH = "copy", "gibberish"
REFUSED_BY = {
    "truncated": "truncated",
    "nan": "nonfinite",
    GIBBERISH: "probe",
    COPY: "behaviour",
    "interleaved-rotary": "behaviour",
    "swapped-gate-up": "behaviour",
    "base-for-tuned": "behaviour",
    "delta-twice": "behaviour",
    "swapped-layers": "behaviour",
    "four-bits": "behaviour",
}
"""Ten ways to misbehave, and the reason that each is refused with."""
GOOD = 20
CLIENTS, QUIET_SECONDS = 4, 15.0
MOST_SECONDS = 120.0
"""For one of them, on a busy machine."""
CORPUS = "\n".join(
    json.dumps({"prompt": word, "answer": said, "max_tokens": 16})
    for word, said in TUNED_TEXT.items()
    if BASE_TEXT[word] != said
)
SETTINGS = (
    "compare.report=true",
    # tests/tiny/DAMAGES.md has them: they let the good steps of this training pass.
    "compare.limits={min_agreement=0.42,max_kl=0.25,max_perplexity_ratio=1.4,"
    "max_length_ratio=1.4,min_change=1e-6,min_accuracy=0.9,min_heard_same_top=0.5}",
    "compare.mirror=0.1",
    "compare.time=60",
    "bake.time=2",
    "bake.inconclusive=promote",
    f"engine.warm_batches={CLIENTS}",
)


class Streams:
    """Clients that ask what the training taught, and hear each token when it comes."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.failures: list[str] = []
        self.wrong: list[tuple[int, str, str]] = []
        self.generations: set[int] = set()
        self.answered = 0
        self.gaps: list[float] = []

    @asynccontextmanager
    async def on(self) -> AsyncIterator["Streams"]:
        enough = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for number in range(CLIENTS):
                tasks.create_task(self._client(random.Random(number), enough))
            try:
                yield self
            finally:
                enough.set()

    async def _client(self, chance: random.Random, enough: asyncio.Event) -> None:
        async with self.running.client() as client:
            while not enough.is_set():
                word = chance.choice(list(TUNED_TEXT))
                try:
                    generation, text = await self._asked(client, word)
                except Exception as failure:
                    self.failures.append(f"{type(failure).__name__}: {failure}")
                    continue
                self.answered += 1
                self.generations.add(generation)
                if text != TUNED_TEXT[word]:
                    self.wrong.append((generation, word, text))

    async def _asked(self, client: Any, word: str) -> tuple[int, str]:
        sampling = {"temperature": 0, "max_new_tokens": 16}
        body = {"text": word, "sampling_params": sampling, "stream": True}
        pieces, came = list[dict[str, Any]](), list[float]()
        async with client.stream("POST", "/generate", json=body) as answer:
            answer.raise_for_status()
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    came.append(time.perf_counter())
                    pieces.append(json.loads(line.removeprefix("data: ")))
        self.gaps += [later - sooner for sooner, later in itertools.pairwise(came)]
        (generation,) = {piece["meta_info"]["generation"] for piece in pieces}
        return generation, pieces[-1]["text"]


def written(folder: Path) -> list[tuple[str | None, Path]]:
    """Write them in the order they arrive in: each that misbehaves comes before a good one."""
    ways = iter(REFUSED_BY)
    found: list[tuple[str | None, Path]] = []
    for number in range(1, GOOD + 1):
        steps = TUNED_STEPS + 2 * number
        if number % 2 == 0:
            kind = next(ways)
            made = misbehaving(folder / f"{kind}_step_{len(found) + 2}", kind, steps)
            found.append((kind, made))
        found.append((None, write_tiny(folder / f"good_step_{len(found) + 2}", steps=steps)))
    return found


def misbehaving(folder: Path, kind: str, steps: int) -> Path:
    """What went wrong while the checkpoint of these steps was written."""
    if kind == COPY:
        return write_tiny(folder, steps=steps - 2, shards=2)  # what is live, in other files
    if kind == GIBBERISH:
        return write_tiny(folder, damage=kind)  # trained ones do not talk so
    return write_wrong(folder, kind, steps)


async def test_what_misbehaves_is_refused_and_nothing_good_is_and_nobody_hears_it(
    tmp_path: Path,
) -> None:
    print("\ntraining thirty checkpoints: two minutes ...", flush=True)
    checkpoints = await asyncio.to_thread(written, tmp_path / "aside")
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(CORPUS)
    running = Running(tmp_path, f"compare.corpus={corpus}", *SETTINGS)
    running.settings = with_files(running.settings)
    running.patience = MOST_SECONDS
    write_tiny(running.checkpoints / "step_1", steps=TUNED_STEPS)
    attempts: list[tuple[str | None, Attempt]] = []
    async with running.serving():
        await running.until(
            lambda: any(isinstance(each, Warmup) and each.is_over for each in running.happened)
        )
        async with Streams(running).on() as streams:
            await asyncio.sleep(QUIET_SECONDS)
            quiet, streams.gaps = streams.gaps, []
            for kind, made in checkpoints:
                folder = running.checkpoints / made.name
                await asyncio.to_thread(shutil.move, made, folder)
                attempts.append((kind, await running.attempted(folder)))
    for _, attempt in attempts:
        print(f"{attempt.revision.label:<28}{words_of(attempt)}")
    print(f"{streams.answered} answers; between tokens {figures_of(streams.gaps, quiet)}")
    refused = {kind: each.reason and each.reason.code for kind, each in attempts if kind}
    assert refused == REFUSED_BY
    good = [attempt for kind, attempt in attempts if not kind]
    assert [each.outcome for each in good] == [Outcome.LIVE] * GOOD
    baked = [each.bake.outcome for each in running.happened if isinstance(each, BakeChanged)]
    assert BakeOutcome.CONVICTED not in baked
    assert streams.failures == []
    assert streams.wrong == []
    assert streams.generations <= {each.number for each in running.generations}


def words_of(attempt: Attempt) -> str:
    seconds = sum(attempt.phases.values())
    found, reason = attempt.facts["behaviour"], attempt.reason
    told = f"{attempt.outcome:<10}{reason.code if reason else '':<11}{seconds:5.1f} s"
    if found is None:
        return told
    kl = "-" if found["mean_kl"] is None else f"{found['mean_kl']:.4f}"
    asked = found["right_answers"]
    right = f"{asked['right']} of {asked['expected']} right" if asked else ""
    return f"{told}  agreement {found['agreement']:.2f}  KL {kl}  heard {found['heard']}  {right}"
