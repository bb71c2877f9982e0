"""The settings of how clients' answers judge what went live."""

from dataclasses import dataclass
from typing import Literal

from hotreload.setting import PartOfAll, Seconds, setting


@dataclass(frozen=True, slots=True)
class BakeSettings:
    """The judgement of new weights by their clients' answers, after they went live."""

    time: Seconds = setting(
        0.0,
        "How long clients' answers judge new weights; clearly worse ones are rolled back and "
        "refused (judge.md). 0: off.",
        live=True,
        example="5m",
        was="reload.bake",
    )
    max_time: Seconds = setting(
        1800.0, "The longest bake, with inconclusive = 'hold'.", live=True, was="reload.bake_max"
    )
    inconclusive: Literal["promote", "hold", "rollback"] = setting(
        "hold",
        "What to do if there are too few answers: promote with a mark, go on until there are "
        "enough, or roll back and refuse.",
        live=True,
        was="reload.bake_inconclusive",
    )
    allowed_increase: PartOfAll = setting(
        0.02,
        "How much more often answers may show a sign of bad weights: 0.02 is 2 more of 100. "
        "Errors may not increase.",
        live=True,
        was="reload.allowed_increase",
    )

    @property
    def longest(self) -> float:
        """Seconds that it lasts at most, where it goes on because there were too few answers."""
        return max(self.max_time, self.time)
