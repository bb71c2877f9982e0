"""Figures of how weights differ along what clients were answered: sums of each batch. Pure.

What weights expected at each place takes much memory, so none is kept but until it is added up.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace

from hotreload.behaviour.asked import Answered, Expected
from hotreload.features.compare.behaviour import Behaviour
from hotreload.features.compare.differences import kl_of


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
    """Add up what clients' answers tell; milliseconds for a batch of them."""
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
