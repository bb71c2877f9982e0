"""The operator's decisions about judging what went live."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class BakeRules:
    """The judgement of new weights by their clients' answers, after they went live."""

    seconds: float = 0.0
    """0: nobody counts answers."""
    longest: float = 1800.0
    """The seconds that it lasts at most, where it goes on because there were too few answers."""
    inconclusive: Literal["promote", "hold", "rollback"] = "hold"
    """The thing to do when there were too few answers to tell anything."""
    allowed_increase: float = 0.02
    """So much more often than the old ones new weights may show a signal."""
