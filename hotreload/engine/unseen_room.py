"""Decides what weights can be asked apart from clients: which prompts find room, and how many."""

import logging
from collections.abc import Sequence

from hotreload.behaviour import HEARD_ANSWER, HEARD_TOKENS, Question
from hotreload.engine.ahead import Ahead
from hotreload.engine.answering.canaries import Canaries
from hotreload.engine.answering.prompts import Prompts
from hotreload.engine.answering.unseen import UnseenItem, as_items, largest_batch
from hotreload.engine.lanes.pool_shares import SHADOW_ROWS
from hotreload.engine.lanes.shadow import ShadowPool
from hotreload.engine.options import UnseenOptions
from hotreload.engine.shadow_lanes import ShadowLanes
from hotreload.errors import BadRequest, ConfigError
from hotreload.threads import in_thread

log = logging.getLogger("hotreload.engine")

NOT_ASKED_FOR = "it was started without [compare] report"
MOST_LOGITS = 2**30
"""The most bytes of logits of one piece of prompts, each of whose tokens has some: beside both
weights there may be no room for more."""


class UnseenRoom:
    """The room for canaries, questions and candidates in the shadow pool; decided at the start."""

    def __init__(
        self,
        options: UnseenOptions,
        prompts: Prompts,
        canaries: Canaries,
        shadows: ShadowLanes,
        ahead: Ahead,
    ) -> None:
        """`options` says what else than canaries there must be room for."""
        self._options = options
        self._prompts = prompts
        self._canaries = canaries
        self._shadows = shadows
        self._ahead = ahead
        self.why_no_comparison = None if options.compares else NOT_ASKED_FOR
        """The reason why no questions are asked, though there is a lane for them."""
        self._question_tokens = 0
        """Tokens that questions may take together."""
        self._replayed_tokens = 0
        """The most tokens of a client's request that can be asked again; 0: none can."""

    @property
    def _replays(self) -> bool:
        """True if weights are compared by clients' requests, too."""
        return self.why_no_comparison is None and self._options.hears

    @property
    def longest_replayed(self) -> int:
        """The most tokens of a client's prompt that can be asked again; below 1: none can."""
        return self._replayed_tokens - HEARD_ANSWER

    async def make_pool(self) -> Sequence[int]:
        """Make the pool in which weights are proven; return the tokens of the largest questions."""
        comparing = await self._needs_to_compare()
        replayed = [self._longest_request()] * SHADOW_ROWS if self._replays else []
        asked = max((self._canaries.needs, comparing, replayed), key=sum)
        self._shadows.make_pool(asked, self._candidate, len(self._canaries.needs))
        return comparing

    @property
    def _candidate(self) -> Sequence[int]:
        """Tokens of each of a candidate's requests."""
        each = self._options.candidate_tokens // SHADOW_ROWS
        return [each] * SHADOW_ROWS if each else []

    def compile_in(self, pool: ShadowPool, comparing: Sequence[int]) -> bool:
        """Compile ahead for all batches in this pool; False if one must be asked to be compiled."""
        self._make_room_to_compare(pool, comparing)
        together, candidate = len(self._canaries.needs), sum(self._candidate)
        probes = [(together, False)]
        if logprobs := self._canaries.ask_logprobs:  # no start that asks briefly asks for them
            probes += [(together, True)]
        compares = self.why_no_comparison is None
        # Else a single probe has been asked, as it is at every start, in batches of this size.
        is_another_size = pool.has_own_programs or together > 1 or logprobs
        is_another_size = is_another_size or self._ahead.at_once > 1
        if not (is_another_size or candidate or compares) or self._ahead.can_prove_in(
            pool, *probes, questions=compares, candidate=candidate
        ):
            return True
        if compares:
            self._compare_nothing("clients would wait for the compiling of its batches")
        return not is_another_size

    async def _needs_to_compare(self) -> Sequence[int]:
        """Tokens that each of a batch of questions takes; none where they cannot be asked."""
        if self.why_no_comparison is not None:
            return ()
        corpus, prompts = self._options.corpus, self._prompts
        try:
            return await in_thread(lambda cancel: largest_batch(corpus, prompts))
        except BadRequest as why:
            self._compare_nothing(str(why))
            return ()

    def _make_room_to_compare(self, pool: ShadowPool, comparing: Sequence[int]) -> None:
        """Decide what may be asked together in this pool, which may be too small for it."""
        self._question_tokens = sum(comparing)
        if self.why_no_comparison is None and not self.holds(comparing[-1:]):
            longest = f"a question takes {comparing[-1]} with its answer"
            self._compare_nothing(f"the KV pool holds {pool.tokens} tokens, and {longest}")
        smallest = self._shadows.smallest_piece
        logits = 4 * smallest * self._prompts.limits.vocabulary
        if logits > MOST_LOGITS and self.why_no_comparison is None:
            size = f"the smallest size of prompts is {smallest} tokens"
            self._compare_nothing(f"{size}; precompile_token_paddings needs a smaller one")
        if self._replays:
            self._make_room_to_replay(pool)

    def _longest_request(self) -> int:
        """Tokens of the longest request to ask again, if there were room for a batch of such."""
        return min(HEARD_TOKENS, self._prompts.limits.total_tokens - 1)

    def _make_room_to_replay(self, pool: ShadowPool) -> None:
        """Ask requests again up to the size of which a whole batch finds room in this pool."""
        longest = min(self._longest_request(), pool.room_for_each_of(SHADOW_ROWS))
        if longest > HEARD_ANSWER:
            self._replayed_tokens = longest
            self._question_tokens = max(self._question_tokens, longest * SHADOW_ROWS)
        else:
            why = f"the KV pool holds {pool.tokens} tokens"
            log.warning("behaviour.cannot_hear", extra={"why": why})

    def _compare_nothing(self, why: str) -> None:
        """Give the comparison up, for as long as this engine runs."""
        self.why_no_comparison = why
        log.warning("behaviour.cannot_compare", extra={"why": why})

    def holds(self, needs: Sequence[int]) -> bool:
        """Return True if questions that take so many tokens can be asked together."""
        return sum(needs) <= self._question_tokens and self._pool.holds(needs)

    def holds_probes(self, needs: Sequence[int]) -> bool:
        """Return True if probes that take so many tokens can be asked together."""
        return self._pool.holds_probes(needs)

    @property
    def _pool(self) -> ShadowPool:
        pool = self._shadows.pool
        assert pool is not None, "without lanes nothing is asked apart from clients"
        return pool

    def check_each(self, asked: Sequence[UnseenItem]) -> None:
        """BadRequest if there is no room for one of them: upstream would end the engine."""
        longest = max((each.needs for each in asked), default=0)
        if not self._pool.holds([longest]):
            raise BadRequest(f"a question takes {longest} tokens with its answer: no room for it")

    async def check(self, questions: Sequence[Question]) -> None:
        """Return if all could be asked of new weights; ConfigError names one that cannot be."""
        asked = await self.read(questions)
        for question, item in zip(questions, asked, strict=True):
            if not self.holds([item.needs]):
                raise ConfigError(
                    f"[compare] corpus: {question.place}: takes {item.needs} tokens with its "
                    f"answer, and since the start there is room for {self._question_tokens}; "
                    "restart hotreload for it"
                )

    async def read(self, questions: Sequence[Question]) -> list[UnseenItem]:
        """Encode the questions, off the loop: long texts would hold it up."""
        prompts = self._prompts
        return await in_thread(lambda cancel: as_items(questions, prompts))
