"""Records requests of clients and their answers, to compare new weights by them, too.

Some of what ends while a checkpoint waits is mirrored, and forgotten with the attempt; the last
requests are kept where an operator says so. All of it is in memory only.
"""

import logging
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from hotreload.behaviour import HeardRequest, heard_of
from hotreload.core.way_in.admission import AnswerCallbacks, LetIn
from hotreload.features.compare.settings import CompareSettings

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
