"""How a daemon is set up for its whole life, as far as it is told."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rank:
    """Which of the hosts of one engine a daemon runs on."""

    own: int
    of: int
    leader: str
    """Where rank 0 is met: it decides, and answers requests."""

    @property
    def follows(self) -> bool:
        """Whether another rank decides."""
        return self.own > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The engines, the host and the kind of source of a daemon."""

    replicas: int = 1
    """How many engines it is to have."""
    tp: int = 1
    """How many devices each engine has, one engine's after the other's."""
    source_kind: str = "directory"
    rank: Rank | None = None
    """Which of several hosts this is; None where there is one."""
