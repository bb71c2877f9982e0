"""The canary prompts of one engine: which they are, and what comes of asking them."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from hotreload.engine.answering.answers import Answer
from hotreload.engine.answering.items import Parsed
from hotreload.engine.answering.probe import (
    BUILT_IN,
    Probe,
    beginning_of,
    decide_verdict,
    request_for,
)
from hotreload.engine.answering.prompts import Prompts
from hotreload.errors import AnswerNonfinite, BadRequest, ConfigError, ProbeFailed

Ask = Callable[[Parsed], AsyncGenerator[Answer | list[Answer]]]


class Canaries:
    """Asked of weights before they answer anybody; others may take their place at any time."""

    def __init__(self, probes: Sequence[Probe], prompts: Prompts) -> None:
        self._prompts = prompts
        self._probes = tuple(probes) or (BUILT_IN,)
        self.longest = self._longest_of(self._probes)
        """Tokens that the longest probe at the start takes with its answer: there is room for no
        more where weights are proven."""

    def change(self, probes: Sequence[Probe]) -> None:
        """Ask these from now on; ConfigError, and no change, if one of them cannot be asked."""
        asked = tuple(probes) or (BUILT_IN,)
        if (longest := self._longest_of(asked)) > self.longest:
            raise ConfigError(
                f"[[probe]]: one takes {longest} tokens with its answer, and since the start there "
                f"is room for {self.longest}; restart hotreload for it"
            )
        self._probes = asked

    async def ask(self, generate: Ask, *, briefly: bool = False) -> None:
        """Ask each of them, or only how its answer begins; ProbeFailed lists each bad answer."""
        asked = map(beginning_of, self._probes) if briefly else self._probes
        verdicts = [await self._verdict(probe, generate) for probe in asked]
        bad = [verdict for verdict in verdicts if verdict is not None]
        if bad:
            raise ProbeFailed(bad[0], findings=bad)

    async def _verdict(self, probe: Probe, generate: Ask) -> str | None:
        asked = self._parsed(probe)
        try:
            async with aclosing(generate(asked)) as answers:
                answer = await anext(answers)
        except AnswerNonfinite as bad:
            return f"probe {probe.prompt!r}: {bad}"
        assert isinstance(answer, dict)
        return decide_verdict(probe, answer)

    def _parsed(self, probe: Probe) -> Parsed:
        """The probe's request, made at once: it must not queue with clients."""
        parsed = self._prompts.parse(request_for(probe))
        return replace(parsed, items=tuple(replace(item, is_probe=True) for item in parsed.items))

    def _longest_of(self, probes: Sequence[Probe]) -> int:
        return max(self._tokens_of(probe) for probe in probes)

    def _tokens_of(self, probe: Probe) -> int:
        """Refuse one that the engine cannot answer: it would reject every checkpoint."""
        try:
            asked = self._parsed(probe).items[0]
        except BadRequest as fault:
            raise ConfigError(f"[[probe]] {probe.prompt!r} cannot be asked: {fault}") from fault
        tokens: int = len(asked.input_ids) + asked.sampling_params["max_new_tokens"]
        return tokens
