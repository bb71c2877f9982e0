"""The settings of how clients' answers judge what went live."""

from dataclasses import dataclass
from typing import Annotated, Literal

from hotreload.setting import Setting
from hotreload.settings.kinds import PartOfAll, Seconds


@dataclass(frozen=True, slots=True)
class BakeSettings:
    """The judgement of new weights by their clients' answers, after they went live."""

    time: Annotated[
        Seconds,
        Setting(
            "How long clients' answers judge new weights; clearly worse ones are rolled back and "
            "refused (judge.md). 0: off.",
            live=True,
            example="5m",
            was="reload.bake",
        ),
    ] = 0.0
    max_time: Annotated[
        Seconds,
        Setting(
            "The longest bake, with inconclusive = 'hold'.",
            live=True,
            was="reload.bake_max",
        ),
    ] = 1800.0
    inconclusive: Annotated[
        Literal["promote", "hold", "rollback"],
        Setting(
            "What to do if there are too few answers: promote with a mark, go on until there are "
            "enough, or roll back and refuse.",
            live=True,
            was="reload.bake_inconclusive",
        ),
    ] = "hold"
    allowed_increase: Annotated[
        PartOfAll,
        Setting(
            "How much more often answers may show a sign of bad weights: 0.02 is 2 more of 100. "
            "Errors may not increase.",
            live=True,
            was="reload.allowed_increase",
        ),
    ] = 0.02

    @property
    def longest(self) -> float:
        """Seconds that it lasts at most, where it goes on because there were too few answers."""
        return max(self.max_time, self.time)
