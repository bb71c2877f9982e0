"""Answers clients' requests: checks them, encodes prompts, and generates by the chosen weights."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from hotreload.engine.answering.answers import Answer, Answers
from hotreload.engine.answering.encoder_copy import EncoderCopy, copy_of
from hotreload.engine.answering.items import USUAL_TOKENS, Item, Parsed
from hotreload.engine.answering.prompts import Prompts
from hotreload.engine.answering.requests import TOO_LONG
from hotreload.engine.answering.tool_calls import CallsOfAnswers
from hotreload.engine.capabilities import Capabilities, EngineLimits
from hotreload.engine.shadow_lanes import ShadowLanes
from hotreload.engine.upstream.thread.nonfinite_logits import WithheldCount
from hotreload.engine.upstream.thread.watch import EngineWatch
from hotreload.engine.weight_switch import WeightSwitch
from hotreload.errors import AnswerNonfinite, BadRequest
from hotreload.threads import in_thread
from hotreload.types import Staged


class ClientAnswers:
    """The answers to clients' requests; `core.ports.ClientAnswers` has the promises."""

    def __init__(
        self,
        front: Answers,
        prompts: Prompts,
        switch: WeightSwitch,
        shadows: ShadowLanes,
        watch: EngineWatch,
    ) -> None:
        self._front = front
        self._prompts = prompts
        self._switch = switch
        self._shadows = shadows
        self._watch = watch
        self._withheld = WithheldCount()
        self._encoder: EncoderCopy | None = None

    @property
    def limits(self) -> EngineLimits:
        """The engine's limits on the size of prompts, answers and batches."""
        return self._prompts.limits

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the engine; a request that asks for more is refused."""
        return self._prompts.capabilities

    @property
    def under_way(self) -> int:
        """Number of prompts that the engine is busy with."""
        return self._front.under_way

    async def prepare(self, request: Mapping[str, Any]) -> Parsed:
        """Check a request and encode its prompts, off the loop; BadRequest names the fault."""
        self._watch.check()
        return await self._prompts.prepare(request)

    @property
    def encodes_as(self) -> str:
        """The name of the copy of the prompt encoder; empty if none was made."""
        return self._encoder.name if self._encoder is not None else ""

    async def encoder_copy(self) -> EncoderCopy | None:
        """Copy the prompt encoder, once; None where it cannot be copied."""
        if self._encoder is None:
            tokenizer, limits, can = self._prompts.tokenizer, self.limits, self.capabilities
            self._encoder = await in_thread(lambda cancel: copy_of(tokenizer, limits, can))
        return self._encoder

    async def tokenize(self, asked: Mapping[str, Any]) -> list[list[int]]:
        """Encode texts, or a chat by the model's template; BadRequest names the fault."""
        self._watch.check()
        return await self._prompts.tokenize(asked)

    async def detokenize(self, ids: Sequence[list[int]], *, skip_special: bool) -> list[str]:
        """Return the text of each list of ids; BadRequest names an unknown id."""
        self._watch.check()
        return await self._prompts.detokenize(ids, skip_special=skip_special)

    async def generate(
        self, request: Mapping[str, Any] | Parsed, weights: Staged | None = None
    ) -> AsyncGenerator[Answer | list[Answer]]:
        """Answer a request, prepared or not: once, or piece by piece when it streams.

        These weights answer it, or the live ones. Closing the iterator aborts, and returns when
        the engine has forgotten the request.
        EngineLost ends every answer, AnswerNonfinite one that the weights made NaN of.
        """
        self._watch.check()
        parsed = request if isinstance(request, Parsed) else await self.prepare(request)
        lane = self._switch.lane_of(weights)
        if is_unseen := lane in self._shadows.open_now:
            assert self._shadows.pool is not None, "a candidate answers in it"
            parsed = _fit_candidate(parsed, self._shadows.pool.longest)
        try:
            async with aclosing(self._front.generate(parsed, lane)) as answers:
                calls = CallsOfAnswers(parsed.calls) if parsed.calls is not None else None
                async for answer in answers:
                    yield answer if calls is None else calls.add_calls(answer)
        except AnswerNonfinite:
            if not is_unseen:
                self._withheld.note()
            raise

    async def abort(self, staged: Staged | None = None) -> None:
        """End every answer under way, by these weights or by any, with the text it has so far.

        A probe goes on.
        """
        meant, unseen = None if staged is None else staged.weights.lane, self._shadows.open_now
        self._front.abort(lambda lane: lane not in unseen if meant is None else lane == meant)

    async def abort_asked(self, rid: str | None) -> int:
        """End the answers of one client's `rid`, or of all clients; return how many ended."""
        return self._front.abort_asked(rid)

    async def wait_for_withheld(self, beyond: int) -> int:
        """Wait until more than `beyond` answers were withheld for NaN; return their count."""
        return await self._withheld.more_than(beyond)

    def count_anew(self) -> None:
        """Reset the count of withheld answers: requests of the start do not count."""
        self._withheld = WithheldCount()


def _fit_candidate(parsed: Parsed, most: int) -> Parsed:
    """Cut the answers of a candidate to the room there is; no client can abort them."""
    return replace(parsed, items=tuple(_cut_to(most, item) for item in parsed.items))


def _cut_to(most: int, item: Item) -> Item:
    """An answer ends where there is no more room, as it does at the context's end."""
    if (left := most - len(item.input_ids)) < 1:
        raise BadRequest(
            f"the prompt has {len(item.input_ids)} tokens, and where a candidate answers there is "
            f"room for {most} with the answer ([command] tokens)",
            code=TOO_LONG,
        )
    wanted = item.sampling_params.get("max_new_tokens", USUAL_TOKENS)
    sampling = {**item.sampling_params, "max_new_tokens": min(wanted, left)}
    return replace(item, sampling_params=sampling, is_probe=True)
