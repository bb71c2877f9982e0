"""`python -m tests.bench.stand_in`: the daemon, with an engine that costs next to nothing.

It makes a token for each stream in every step, of prompts that it encodes as the real one does.
What that takes the process is what its front takes.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from tests.words.absent import Absent

if __name__ == "__main__":
    sys.meta_path.insert(0, Absent())  # before anything imports JAX

from hotreload import cli
from hotreload.engine.answering.encoder_copy import copy_of
from hotreload.engine.answering.items import Parsed
from hotreload.engine.answering.prompts import Prompts
from hotreload.engine.capabilities import Capabilities, EngineLimits
from hotreload.engine.options import EngineOptions
from hotreload.types import Staged
from tests.bench.named_threads import name_threads
from tests.fake_answers import FakeParsed
from tests.words.engine import EngineOfWords, starting_engines_of_words

STEP_SECONDS = 0.002
LIMITS = EngineLimits(vocabulary=2000, input_tokens=8000, total_tokens=8192)
CAN = Capabilities(
    logprobs=True,
    grammars=False,
    seeds=False,
    sampling=frozenset({"temperature", "max_new_tokens", "ignore_eos", "top_p"}),
)
WORD = "word "
LONGEST = 4096
"""The most tokens of an answer."""


class Steps:
    """Turns by themselves while there is a stream; each gives every stream one token.

    The next one begins when the step's time is over and everybody has taken that token: so no queue
    grows, and how many steps there are is how many the front keeps up with.
    """

    def __init__(self) -> None:
        self._streams: dict[Stream, None] = {}
        self._not_taken = 0
        self._all_taken = asyncio.Event()
        self._turning: asyncio.Task[None] | None = None

    def begin(self, stream: "Stream") -> None:
        self._streams[stream] = None
        if self._turning is None:
            self._turning = asyncio.create_task(self._turn(), name="steps")

    def end(self, stream: "Stream") -> None:
        self._streams.pop(stream, None)
        self.take(stream)

    def take(self, stream: "Stream") -> None:
        if stream.made.is_set():
            stream.made.clear()
            self._not_taken -= 1
            if not self._not_taken:
                self._all_taken.set()

    async def _turn(self) -> None:
        loop = asyncio.get_running_loop()
        while self._streams:
            until = loop.time() + STEP_SECONDS
            self._all_taken.clear()
            self._not_taken = len(self._streams)
            for stream in self._streams:
                stream.made.set()
            await self._all_taken.wait()
            await asyncio.sleep(max(0.0, until - loop.time()))
        self._turning = None


class Stream:
    """One answer under way."""

    def __init__(self) -> None:
        self.made = asyncio.Event()
        """Set while a token waits to be taken."""


class EngineOfTokens(EngineOfWords):
    """Answers each stream with as many tokens as it wants."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._steps = Steps()
        self._prompts: Prompts

    @classmethod
    async def start(cls, options: EngineOptions, **terms: Any) -> "EngineOfTokens":
        from transformers import AutoTokenizer

        made = await super().start(options, **terms)
        assert isinstance(made, EngineOfTokens)
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        made._prompts = Prompts(tokenizer, LIMITS, CAN)
        made.encoder = copy_of(tokenizer, LIMITS, CAN)
        return made

    async def prepare(self, request: Mapping[str, Any]) -> FakeParsed:
        made = await self._prompts.prepare(request)
        return FakeParsed(made.items, made.is_batch, made.stream, request=request)

    async def generate(
        self, prepared: Parsed, weights: Staged | None = None
    ) -> AsyncGenerator[dict[str, Any] | list[dict[str, Any]]]:
        assert isinstance(prepared, FakeParsed)
        assert prepared.stream, "only streams are measured"
        most = prepared.request["sampling_params"]["max_new_tokens"]
        stream = Stream()
        self._steps.begin(stream)
        try:
            for made in range(1, most + 1):
                await stream.made.wait()
                yield piece(made, is_last=made == most)
                self._steps.take(stream)
        finally:
            self._steps.end(stream)


TEXT, IDS = WORD * LONGEST, [7] * LONGEST


def piece(made: int, *, is_last: bool) -> dict[str, Any]:
    """So much of an answer, with all that upstream tells of it."""
    meta = {
        "id": "0.9d1f5e3a7c",
        "finish_reason": {"type": "length", "length": made} if is_last else None,
        "prompt_tokens": 8,
        "completion_tokens": made,
        "cached_tokens": 0,
        "cache_miss_count": 0,
    }
    return {"text": TEXT[: made * len(WORD)], "output_ids": IDS[:made], "meta_info": meta}


if __name__ == "__main__":
    name_threads()
    assert Path("/proc/thread-self").exists()
    with starting_engines_of_words(EngineOfTokens):
        sys.exit(cli.main())
