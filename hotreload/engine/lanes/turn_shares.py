"""Says in which of its turns a lane launches, so that some have more of the steps than others.

It counts turns and looks at what lanes hold, and never at a clock: so all ranks of an engine over
several hosts decide the same. On one host a proof that would take long may `hurry`. `Rotation` says
why no pattern mixes anything.
"""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from hotreload.engine.lanes.lane import Lane
from hotreload.types import Shares

WHOLE = Fraction(1)
FINEST = 1000
"""Shares are taken as fractions over no more than this, for exact sums of them."""


class TurnShares:
    """The share of its turns in which each lane launches; the live weights' lane uses all turns.

    Weights that are proven have a share of all clients' steps, however many lanes those have.
    """

    def __init__(
        self,
        live: Lane,
        shares: Shares,
        *,
        has_work: Callable[[Lane], bool],
        running: Callable[[Lane], int],
    ) -> None:
        """`has_work` says if a lane has anything to launch, `running` how many it answers."""
        self.live = live
        """The lane that new requests are admitted to: it never rests."""
        self._has_work = has_work
        self._running = running
        self._shadow = _fraction(shares.shadow)
        self._fading = _fraction(shares.fading)
        self._prove_within = shares.prove_within

    def may_launch(self, lane: Lane, lanes: Sequence[Lane]) -> bool:
        """Count one more turn of this lane; say if it may launch in it."""
        if not self._has_work(lane):
            lane.credit = Fraction(0)
            return True
        may = self._is_owed(lane, self._share(lane, lanes))
        lane.rounds += 1
        lane.launches += may
        return may

    def _is_owed(self, lane: Lane, share: Fraction) -> bool:
        if share == WHOLE:
            lane.credit = Fraction(0)
            return True
        lane.credit += share
        if lane.credit < 1:
            return False
        lane.credit -= 1
        return True

    def hurry(self, lane: Lane, steps: int, since: float) -> None:
        """Give a proof the share by which its steps end in time.

        It is the usual one at least. A step is taken for as long as those before were: `since` is
        the time of them. Where all ranks must decide the same, this is not called: their clocks
        differ.
        """
        assert self._prove_within is not None, "nobody asks where clocks differ"
        left, step = self._prove_within - since, since / max(1, lane.rounds + lane.launches)
        own = max(1, steps - lane.launches) * step
        lane.share = max(self._shadow, _fraction(own / max(own, left - own)))

    def turns_between(self, lane: Lane) -> int:
        """The most turns from one in which this lane may launch to the next."""
        return 1 if lane is self.live else math.ceil(1 / self._fading)

    def _share(self, lane: Lane, lanes: Sequence[Lane]) -> Fraction:
        """The part of its turns in which it launches; all, if no other lane has anything to do.

        All, too, for a shadow that is given up: it takes a step to end, and is waited for.
        """
        serving = [each for each in lanes if not each.has_own_pool]
        if not lane.has_own_pool:
            return self._share_of_serving(lane, serving)
        if lane.is_ending:
            return WHOLE
        at_work = filter(self._has_work, serving)
        steps = sum((self._share_of_serving(each, serving) for each in at_work), Fraction(0))
        # A share of the clients' steps, of which a round has one for each lane that does not rest.
        return min(WHOLE, (lane.share or self._shadow) * steps) if steps else WHOLE

    def _share_of_serving(self, lane: Lane, serving: Sequence[Lane]) -> Fraction:
        if lane is self.live:
            return WHOLE
        own, most = self._running(lane), max(map(self._running, serving))
        return WHOLE if own >= most else max(self._fading, Fraction(own, most))


def _fraction(share: float) -> Fraction:
    return Fraction(share).limit_denominator(FINEST)
