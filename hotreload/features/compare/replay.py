"""Records requests of clients and their answers, and leads live and new weights along them.

Some of what ends while a checkpoint waits is mirrored, and forgotten with the attempt; the last
requests are kept where an operator says so. All of it is in memory only. What weights expected at
each place takes much memory, so none is kept but until it is added up.
"""

import asyncio
import logging
import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import astuple, dataclass, replace
from itertools import batched
from typing import Any

from hotreload.behaviour import HEARD_AT_ONCE, Answered, Expected, HeardRequest, heard_of
from hotreload.core.way_in.admission import AnswerCallbacks, LetIn
from hotreload.errors import AnswerNonfinite, EngineLost, NotJudged
from hotreload.features.compare.comparison import FEWEST_HEARD, BehaviourRejected, BothWeights
from hotreload.features.compare.differences import kl_of
from hotreload.features.compare.evidence import Behaviour
from hotreload.features.compare.settings import CompareSettings
from hotreload.threads import in_thread

log = logging.getLogger("hotreload.behaviour")

MOST_MIRRORED = 64
"""The most requests that are mirrored for one checkpoint: the last ones that were chosen."""


@dataclass(frozen=True, slots=True)
class HearingNow:
    """Figures of the requests that are recorded to compare new weights by."""

    mirror: float
    """The share of those that end while a checkpoint waits."""
    replay: int
    """The most that are kept in memory."""
    kept: int
    mirrored: int
    """Those that were mirrored for the checkpoint that waits; 0 where none does."""


class RequestRecorder:
    """The requests of clients that new weights are led along."""

    def __init__(
        self,
        settings: CompareSettings = CompareSettings(),  # noqa: B008 (frozen)
        choose: Callable[[], float] = random.random,
    ) -> None:
        """`choose` makes a number from 0 to 1 for each that may be mirrored."""
        self._settings = settings
        self._choose = choose
        self._kept: deque[HeardRequest] = deque(maxlen=settings.replay)
        self._mirrored: deque[HeardRequest] | None = None

    @property
    def listens(self) -> bool:
        """True if a request that ends now may be recorded."""
        return self._settings.hears

    @property
    def now(self) -> HearingNow | None:
        """Figures for people; None if no request is recorded. For any thread."""
        if not self.listens:
            return None
        mirrored = self._mirrored or ()
        mirror, replay = self._settings.mirror, self._settings.replay
        return HearingNow(mirror, replay, len(self._kept), len(mirrored))

    def listen(self, request: LetIn) -> AbstractContextManager[AnswerCallbacks] | None:
        """Listen to the answers of a request; of several to one prompt, to the first."""
        if not self.listens or request.token_ids is None:
            return None
        prompts, copies = request.token_ids(), request.copies
        firsts = {index: ids for index, ids in prompts.items() if index % copies == 0}

        def record(index: int, answer: Mapping[str, Any]) -> None:
            """Record an answer that has ended; a fault of ours must not keep it from its client."""
            if index not in firsts:
                return
            try:
                heard = heard_of(firsts.pop(index), answer)
                if heard is not None:
                    self._take(heard)
            except Exception:
                log.exception("behaviour.internal_error")

        return nullcontext(AnswerCallbacks(ended=record))

    @contextmanager
    def mirror(self) -> Iterator[None]:
        """Mirror requests until the checkpoint that waits is compared; in the end none are left."""
        self._mirrored = deque(maxlen=MOST_MIRRORED)
        try:
            yield
        finally:
            self._mirrored = None

    def take_recorded(self) -> Sequence[HeardRequest]:
        """Return all recorded requests: mirrored ones before kept ones, each the newest first.

        Nothing more is mirrored for the checkpoint that waits.
        """
        mirrored, self._mirrored = self._mirrored or (), None
        return [*dict.fromkeys([*reversed(mirrored), *reversed(self._kept)])]

    def _take(self, heard: HeardRequest) -> None:
        self._kept.append(heard)
        if self._mirrored is not None and self._choose() < self._settings.mirror:
            self._mirrored.append(heard)


log = logging.getLogger("hotreload.behaviour")


async def also_by_heard(
    both: BothWeights,
    found: Behaviour,
    heard: Sequence[HeardRequest],
    seconds: float,
    *,
    decides: bool = False,
) -> Behaviour:
    """Add the figures of clients' answers to a report, as far as there is time.

    What fails here leaves the report as it was, but for new weights that make no numbers; where it
    `decides`, NotJudged is raised if there were enough of them and not enough could be compared.
    """
    sums = HeardSums()
    limit, began = asyncio.timeout(seconds), time.monotonic()
    try:
        async with limit:
            for some in batched(heard, HEARD_AT_ONCE):
                sums += await _along(both, some)
    except (EngineLost, BehaviourRejected):
        raise
    except Exception as fault:
        # What it says may be of what a client said.
        why = "[compare] time was up" if limit.expired() else type(fault).__name__
        if decides and sums.requests < FEWEST_HEARD <= len(heard):
            words = f"{sums.requests} of {len(heard)} requests of clients were compared: {why}"
            raise NotJudged(f"[compare.limits] {words}") from None
        if not limit.expired():
            log.warning("behaviour.not_replayed", extra={"why": why})
    return replace(with_heard(found, sums), seconds=found.seconds + time.monotonic() - began)


async def _along(both: BothWeights, heard: Sequence[HeardRequest]) -> "HeardSums":
    """Lead both along the same answers, the live ones twice; none where those make no numbers."""
    questions = [each.question for each in heard]
    try:
        live = await both.engine.unseen.ask(both.live, questions)
        # In another order: rows of a batch are no part of what weights expect.
        again = await both.engine.unseen.ask(both.live, questions[::-1])
    except AnswerNonfinite:
        return HeardSums()
    try:
        new = await both.engine.unseen.ask(both.new, questions)
    except AnswerNonfinite as bad:
        raise BehaviourRejected(f"asked what a client was answered: {bad}") from bad
    led = [AlongHeard(*each) for each in zip(live, again[::-1], new, strict=True)]
    # Off the loop, for which clients wait.
    return await in_thread(lambda cancel: sums_of(led), leave_as="adding up", is_read=False)


# --- the figures of it ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AlongHeard:
    """Live weights, the same once more, and new ones along what a client was answered."""

    live: Answered
    again: Answered
    new: Answered

    @property
    def places(self) -> Iterator[tuple[int, Expected, Expected, Expected]]:
        """Each token that the client got, and what the three expected in its place."""
        expected = (each.expected for each in (self.live, self.again, self.new))
        return zip(self.live.tokens, *expected, strict=False)


@dataclass(frozen=True, slots=True)
class HeardSums:
    """Sums over the places of clients' answers."""

    requests: int = 0
    places: int = 0
    kl: float = 0.0
    noise_kl: float = 0.0
    same_top: int = 0
    surprise: float = 0.0
    """By how much more the new weights are surprised, in nats."""

    def __add__(self, more: "HeardSums") -> "HeardSums":
        both = zip(astuple(self), astuple(more), strict=True)
        return HeardSums(*(one + other for one, other in both))


def sums_of(heard: Sequence[AlongHeard]) -> HeardSums:
    """Add up the figures of clients' answers; takes milliseconds for a batch."""
    places = [place for each in heard for place in each.places]
    return HeardSums(
        requests=len(heard),
        places=len(places),
        kl=math.fsum(kl_of(live, new, given) for given, live, _, new in places),
        noise_kl=math.fsum(kl_of(live, again, given) for given, live, again, _ in places),
        same_top=sum(live.top == new.top for _, live, _, new in places),
        surprise=math.fsum(live.token - new.token for _, live, _, new in places),
    )


def with_heard(found: Behaviour, sums: HeardSums) -> Behaviour:
    """Add them to a report; figures alone, for what was said is the clients'."""
    found = replace(found, heard=sums.requests, heard_tokens=sums.places)
    if not sums.places:
        return found
    return replace(
        found,
        heard_kl=sums.kl / sums.places,
        heard_noise_kl=sums.noise_kl / sums.places,
        heard_same_top=sums.same_top / sums.places,
        heard_perplexity_ratio=math.exp(min(sums.surprise / sums.places, 700.0)),
    )
