"""The canary prompts of one engine: which they are, and what comes of asking them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from hotreload.engine.answering.answers import Answer, all_ended
from hotreload.engine.answering.items import Parsed
from hotreload.engine.answering.probe import (
    BUILT_IN,
    Probe,
    beginning_of,
    decide_verdict,
    request_for,
)
from hotreload.engine.answering.prompts import Prompts
from hotreload.engine.answering.unseen import FindRoom, put_together
from hotreload.engine.lanes.pool_shares import SHADOW_ROWS
from hotreload.errors import AnswerNonfinite, BadRequest, ConfigError, ProbeFailed
from hotreload.threads import run_to_end

Ask = Callable[[Parsed], AsyncGenerator[Answer | list[Answer]]]
Batches = Sequence[Sequence[Probe]]
"""Probes, of which those of one batch are asked together."""


class Canaries:
    """Asked of weights before they answer anybody; others may take their place at any time."""

    def __init__(self, probes: Sequence[Probe], prompts: Prompts) -> None:
        self._prompts = prompts
        self._probes = tuple(probes) or (BUILT_IN,)
        self.needs = sorted(map(self._tokens_of, self._probes))[-SHADOW_ROWS:]
        """Tokens that each probe of the largest batch takes with its answer."""
        self.room = sum(self.needs)
        """Tokens for which there is room where weights are proven, from the start on."""

    @property
    def first_size(self) -> tuple[int, int]:
        """The number of canaries that are asked together, and the tokens of their prompts."""
        asked = self._probes[:SHADOW_ROWS]
        return len(asked), sum(map(self._tokens_of, map(beginning_of, asked)))

    @property
    def ask_logprobs(self) -> bool:
        """True if one is judged by log-probabilities."""
        return any(probe.min_mean_logprob is not None for probe in self._probes)

    def change(self, probes: Sequence[Probe]) -> None:
        """Ask these from now on; ConfigError, and no change, if one of them cannot be asked."""
        asked = tuple(probes) or (BUILT_IN,)
        if (longest := max(map(self._tokens_of, asked))) > self.room:
            raise ConfigError(
                f"[[probe]]: one takes {longest} tokens with its answer, and since the start there "
                f"is room for {self.room}; restart hotreload for it"
            )
        self._probes = asked

    def in_batches(
        self, find_room: FindRoom = lambda needs: True, *, briefly: bool = False
    ) -> Batches:
        """The probes to ask now, those together that find rows and room; the most come first.

        `briefly` asks only how each answer begins.
        """
        asked = map(beginning_of, self._probes) if briefly else self._probes
        return sorted(put_together(asked, self._tokens_of, find_room), key=len, reverse=True)

    async def ask(self, asked: Batches, generate: Ask) -> None:
        """Ask each of them; ProbeFailed lists each bad answer."""
        verdicts = [each for batch in asked for each in await self._verdicts(batch, generate)]
        bad = [verdict for verdict in verdicts if verdict is not None]
        if bad:
            raise ProbeFailed(bad[0], findings=bad)

    async def _verdicts(self, batch: Sequence[Probe], generate: Ask) -> list[str | None]:
        """Each probe is a request of its own: what one is answered says nothing of another."""
        tasks = [asyncio.create_task(self._verdict(probe, generate)) for probe in batch]
        try:
            return [await task for task in tasks]
        finally:
            await run_to_end(all_ended(tasks))

    async def _verdict(self, probe: Probe, generate: Ask) -> str | None:
        asked = self._parse(probe)
        try:
            async with aclosing(generate(asked)) as answers:
                answer = await anext(answers)
        except AnswerNonfinite as bad:
            return f"probe {probe.prompt!r}: {bad}"
        assert isinstance(answer, dict)
        return decide_verdict(probe, answer)

    def _parse(self, probe: Probe) -> Parsed:
        """The probe's request, made at once: it must not queue with clients."""
        parsed = self._prompts.parse(request_for(probe))
        return replace(parsed, items=tuple(replace(item, is_probe=True) for item in parsed.items))

    def _tokens_of(self, probe: Probe) -> int:
        """Refuse one that the engine cannot answer: it would reject every checkpoint."""
        try:
            asked = self._parse(probe).items[0]
        except BadRequest as fault:
            raise ConfigError(f"[[probe]] {probe.prompt!r} cannot be asked: {fault}") from fault
        tokens: int = len(asked.input_ids) + asked.sampling_params["max_new_tokens"]
        return tokens
