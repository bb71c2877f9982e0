"""The limits of named API keys: requests to the model under way, and tokens a minute.

They are kept in the engine's process. Every request to the model passes it, those of workers too,
so a limit holds for the whole daemon.
"""

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

from hotreload.picture.picture import KeyFigures
from hotreload.server.http.keys import ApiKeys
from hotreload.server.http.problems import Refused
from hotreload.server_limits import UNNAMED, KeyTerms

MINUTE = 60.0
REQUESTS, TOKENS_PER_MINUTE = "requests", "tokens_per_minute"


@dataclass(slots=True, eq=False)
class TokenCount:
    """The tokens of one request to the model so far."""

    copies: int = 1
    """The number of answers to each prompt."""
    prompts: int = 0
    answers: dict[int, int] = field(default_factory=dict)
    """The tokens of each answer, by its index."""

    def begin(self, index: int, prompt: int) -> int:
        """Count the prompt of an answer that begins, once for all its copies; return 0 tokens."""
        if index % self.copies == 0:
            self.prompts += prompt
        return 0

    @property
    def total(self) -> int:
        """All tokens."""
        return self.prompts + sum(self.answers.values())


@dataclass(slots=True)
class KeyLimits:
    """Counts requests and tokens of each name, and refuses requests over its limits.

    Counts belong to names: a new key of the same name, or another limit, leaves them as they are.
    """

    files: Collection[ApiKeys] = ()
    clock: Callable[[], float] = time.monotonic
    _uses: dict[str, "_Use"] = field(default_factory=dict, init=False)

    def hold(self, name: str, copies: int) -> AbstractContextManager[TokenCount]:
        """Count a request while the block runs, and its tokens; Refused with 429 over a limit."""
        count = TokenCount(copies)
        return self._hold(name, count) if name else nullcontext(count)

    @contextmanager
    def _hold(self, name: str, count: TokenCount) -> Iterator[TokenCount]:
        if (use := self._uses.get(name)) is None:
            use = self._uses[name] = _Use(self.clock())
        terms = self._terms_of(name)
        counts = tuple(use.charged) if terms.tokens_per_minute is not None else ()
        use.settle(counts, terms, self.clock())
        use.check(terms)
        use.charged[count] = 0
        use.requests += 1
        try:
            yield count
        finally:
            use.settle((count,), self._terms_of(name), self.clock())
            del use.charged[count]

    def figures(self) -> Mapping[str, KeyFigures]:
        """Return the counts of each name that the files have now; for any thread."""
        names = dict.fromkeys(name for file in self.files for name in tuple(file.terms))
        uses = {name: self._uses.get(name) for name in names}
        return {name: use.figures() if use else KeyFigures() for name, use in uses.items()}

    def _terms_of(self, name: str) -> KeyTerms:
        return next((file.terms[name] for file in self.files if name in file.terms), UNNAMED)


class _Use:
    """The requests under way of one name, and the tokens that no minute has paid yet."""

    def __init__(self, now: float) -> None:
        self.requests = self.tokens = 0
        self.charged: dict[TokenCount, int] = {}
        """The requests under way, each with the tokens that are counted already."""
        self._refused = Counter[str]()
        self._unpaid = 0.0
        self._settled_at = now

    def settle(self, counts: Collection[TokenCount], terms: KeyTerms, now: float) -> None:
        """Count the new tokens of these requests, and pay for tokens with the time."""
        new = 0
        for count in counts:
            new += (total := count.total) - self.charged[count]
            self.charged[count] = total
        self.tokens += new
        if (per_minute := terms.tokens_per_minute) is None:
            self._unpaid = 0.0
        else:
            paid = per_minute * (now - self._settled_at) / MINUTE
            self._unpaid = max(0.0, self._unpaid - paid) + new
        self._settled_at = now

    def check(self, terms: KeyTerms) -> None:
        most, per_minute = terms.requests, terms.tokens_per_minute
        if most is not None and len(self.charged) >= most:
            words = f"{len(self.charged)} of {most} requests of this key are under way"
            raise self._refuse(REQUESTS, terms, words, 0.0)
        if per_minute is not None and self._unpaid >= per_minute:
            seconds = (self._unpaid - per_minute) * MINUTE / per_minute
            words = f"this key has used its {per_minute} tokens a minute"
            raise self._refuse(TOKENS_PER_MINUTE, terms, words, seconds)

    def _refuse(self, limit: str, terms: KeyTerms, words: str, seconds: float) -> Refused:
        self._refused[limit] += 1
        said = f"{words} ({limit} of {terms.name!r} in the file of API keys)"
        return Refused(429, "rate_limit_exceeded", said, retry_after=math.floor(seconds) + 1)

    def figures(self) -> KeyFigures:
        return KeyFigures(
            self.requests, self._refused[REQUESTS], self._refused[TOKENS_PER_MINUTE], self.tokens
        )
