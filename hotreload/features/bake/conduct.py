"""The conduct of weights: the answers of each set, counted as they begin and as they end.

The server reports each request once it is let in, and each answer once it has ended: one place for
all routes. This module counts and does not judge. It counts answers, not tokens, and keeps no text.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from hotreload.core.way_in.admission import AnswerCallbacks, LetIn
from hotreload.errors import AnswerNonfinite
from hotreload.features.bake.rule import FIRST_ANSWERS, SignalTally, long_from, tally_of
from hotreload.features.bake.signals import BROKEN_OFF, OUT_OF_TIME, SeenAnswer, Signal, seen_of
from hotreload.types import Generation

log = logging.getLogger("hotreload.bake")

KEPT_ANSWERS = 2000
"""The last so many answers of a set of weights stand for it when newer ones are judged."""


class Conduct:
    """The answers of one set of weights, in all engines that hold it."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        """The generation of these weights; a rollback to them gives them another."""
        self.running = 0
        """Count of answers that have begun and not ended."""
        self.recent: deque[SeenAnswer] = deque(maxlen=KEPT_ANSWERS)
        """The answers that ended, the newest last."""
        self.early_errors = 0
        """Count of errors among the answers that began first."""
        self.tallies: list[SignalTally] = []
        """Tallies that count each further answer."""
        self.on_answer: Callable[[], None] = _ignore
        """Called after the end of each answer."""
        self._begun = 0

    def begin(self, answers: int) -> int:
        """Count answers that begin; return the place of the first in their order."""
        first, self._begun = self._begun, self._begun + answers
        self.running += answers
        return first

    def end(self, place: int, seen: SeenAnswer) -> None:
        """Count an answer that has ended; `place` is its place in their order."""
        self.running -= 1
        self.recent.append(seen)
        self.early_errors += place < FIRST_ANSWERS and Signal.ERROR in seen.signals
        for tally in self.tallies:
            tally.add(seen)
        self.on_answer()

    def leave(self) -> None:
        """Stop counting an answer that a client, a swap or a lost engine ended."""
        self.running -= 1

    def tally(self, beyond: int | None) -> SignalTally:
        """Make a tally of the last answers; each further one is added until `tallies` loses it."""
        tally = tally_of(self.recent, beyond)
        self.tallies.append(tally)
        return tally

    @property
    def long_from(self) -> int | None:
        """The length beyond which an answer is long beside these; None while there are few."""
        return long_from(self.recent)


class AnswersBegun:
    """The answers to one request, from its admission on."""

    def __init__(self, conduct: Conduct, prompts: int, copies: int) -> None:
        self._conduct = conduct
        self._copies = copies
        first = conduct.begin(prompts)
        self._places = {index * copies: first + index for index in range(prompts)}
        """The place of each that has not ended, by its index in the request. Of several answers to
        one prompt the first counts: the others would only say the same of the weights again."""

    def count(self, index: int, answer: Mapping[str, Any]) -> None:
        """Count the answer of this index, which has ended."""
        if index in self._places:
            self._count(index, lambda: seen_of(answer))

    def close(self, seen: SeenAnswer | None = None) -> None:
        """Count each answer that has not ended as `seen`; None counts none of them."""
        for index in [*self._places]:
            self._count(index, lambda: seen)

    def _count(self, index: int, look: Callable[[], SeenAnswer | None]) -> None:
        """Count one answer; a fault of ours must not keep it from its client."""
        place = self._places.pop(index)
        try:
            if (seen := look()) is None:
                self._conduct.leave()
            else:
                self._conduct.end(place, seen)
        except Exception:
            log.exception("bake.internal_error")


class Conducts:
    """The conduct of each set of weights that answers, or answered lately."""

    def __init__(self) -> None:
        self.is_counting = False
        """True while bakes are switched on."""
        self._by_weights: dict[str, Conduct] = {}

    def listen(self, request: LetIn) -> AbstractContextManager[AnswerCallbacks] | None:
        """Count the answers to a request, unless its client leaves early."""
        return self._count(request) if self.is_counting else None

    @contextmanager
    def _count(self, request: LetIn) -> Iterator[AnswerCallbacks]:
        begun = AnswersBegun(self.of(request.generation), request.prompts, request.copies)
        try:
            yield AnswerCallbacks(ended=begun.count)
        except AnswerNonfinite:
            begun.close(BROKEN_OFF)
            raise
        except asyncio.CancelledError:
            if asyncio.get_running_loop().time() >= request.until:
                begun.close(OUT_OF_TIME)
            raise
        finally:
            begun.close()

    def of(self, generation: Generation) -> Conduct:
        """Return the conduct of a generation's weights, under whatever number they were live."""
        weights = generation.fingerprint
        return self._by_weights.setdefault(weights, Conduct(generation))

    def begin_anew(self, generation: Generation) -> Conduct:
        """Forget the answers of these weights, also those under way."""
        self._by_weights.pop(generation.fingerprint, None)
        return self.of(generation)

    def keep(self, needed: Callable[[Conduct], bool]) -> None:
        """Forget weights that have no request, unless `needed` returns True for their conduct."""
        kept = {w: c for w, c in self._by_weights.items() if c.running or needed(c)}
        self._by_weights = kept


def _ignore() -> None:
    """Ignore the end of an answer."""
