"""Asks weights apart from clients: before they answer requests, and beside those that do.

Canary prompts show whether they answer at all; other questions, how they differ from the live ones.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext
from functools import partial

from hotreload.behaviour import Answered, Question
from hotreload.engine.ahead import Ahead
from hotreload.engine.answering.answers import Answer, Answers
from hotreload.engine.answering.canaries import Batches, Canaries
from hotreload.engine.answering.items import Parsed
from hotreload.engine.answering.unseen import UnseenBatch, in_batches
from hotreload.engine.shadow_lanes import ShadowLanes
from hotreload.engine.unseen_room import UnseenRoom
from hotreload.engine.weight_switch import WeightSwitch
from hotreload.threads import in_thread
from hotreload.types import Staged

ANY_PROMPTS = 0
"""In the place of the number of prompts that are asked together: they come and go."""


class UnseenAnswers:
    """The answers of each set of weights that no client sees.

    `core.ports.UnseenAnswers` says what its methods promise.
    """

    def __init__(
        self,
        front: Answers,
        switch: WeightSwitch,
        shadows: ShadowLanes,
        room: UnseenRoom,
        *,
        canaries: Canaries,
        ahead: Ahead,
    ) -> None:
        self._front = front
        self._switch = switch
        self._shadows = shadows
        self._room = room
        self._canaries = canaries
        self._ahead = ahead

    @property
    def cannot_compare(self) -> str | None:
        """The reason why staged weights cannot be asked questions; None if they can."""
        return self._room.why_no_comparison or self._switch.cannot_overlap

    def askable(self, prepared: Parsed) -> Mapping[int, Sequence[int]]:
        """Return the ids of each prompt, by the index of its answer, that can be asked again."""
        room = self._room.longest_replayed if self.cannot_compare is None else 0
        prompts = ((index, item.input_ids) for index, item in enumerate(prepared.items))
        return {index: ids for index, ids in prompts if len(ids) <= room}

    async def prove(self, staged: Staged) -> None:
        """Ask staged weights every canary prompt, in a lane without clients."""
        asked = self._canaries.in_batches(self._room.holds_probes)
        steps = sum(max(probe.max_new_tokens for probe in batch) for batch in asked)
        shadows = self._shadows
        async with (
            shadows.open(staged.weights, len(asked[0])) as lane,
            shadows.in_time(lane, steps),
        ):
            await self._ask_canaries(asked, lane)

    async def ask(self, staged: Staged, questions: Sequence[Question]) -> Sequence[Answered]:
        """Ask weights questions in a lane without clients; return answers and expectations."""
        found: list[Answered] = []
        asked = await self._room.read(questions)
        self._room.check_each(asked)
        for batch in in_batches(asked, self._room.holds):
            prompts = len(batch.request.items)
            goes_live = staged.weights.lane is None  # else it answers requests: nothing waits
            async with (
                self._shadows.open(staged.weights, prompts, batch.along) as lane,
                self._shadows.in_time(lane, batch.steps) if goes_live else nullcontext(),
                aclosing(self._front.generate(batch.request, lane)) as answers,
            ):
                answer = await anext(answers)
            assert isinstance(answer, list)
            found += await _read(batch, answer)
        return found

    async def check_questions(self, questions: Sequence[Question]) -> None:
        """Return if all could be asked of new weights; ConfigError names one that cannot be."""
        if self.cannot_compare is None:
            await self._room.check(questions)

    @asynccontextmanager
    async def as_candidate(self, staged: Staged) -> AsyncIterator[None]:
        """Have staged weights answer `generate`, in a lane without clients."""
        async with self._shadows.open(staged.weights, ANY_PROMPTS) as lane:
            staged.weights.lane = lane
            try:
                yield
            finally:
                staged.weights.lane = None
                self._front.abort(lambda each: each == lane)

    async def probe(self, *, briefly: bool = False) -> None:
        """Ask the live weights every canary prompt; ProbeFailed lists each bad answer.

        `briefly` asks only how each answer begins: that it does, and by numbers.
        """
        await self._ahead.compile_first(*self._canaries.first_size)
        asked = self._canaries.in_batches(briefly=briefly)
        await self._ask_canaries(asked, self._switch.lane_of(None))

    async def _ask_canaries(self, asked: Batches, lane: int) -> None:
        """Ask past `ClientAnswers`, which counts withheld answers: a probe's is no client's."""
        await self._canaries.ask(asked, partial(self._front.generate, lane=lane))


async def _read(batch: UnseenBatch, answers: Sequence[Answer]) -> Sequence[Answered]:
    """Read the answers off the loop, for which clients wait."""
    return await in_thread(lambda cancel: batch.read_answers(answers), is_read=False)
