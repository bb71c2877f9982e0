"""The set-up of a daemon for its whole life, as far as it is told."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rank:
    """The place of a daemon among the hosts of one engine."""

    own: int
    of: int
    leader: str
    """Where rank 0 is met: it decides, and answers requests."""

    @property
    def follows(self) -> bool:
        """True where another rank decides."""
        return self.own > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The engines, the host and the kind of source of a daemon."""

    replicas: int = 1
    """The number of engines that it is to have."""
    tp: int = 1
    """The number of devices of each engine, one engine's after the other's."""
    source_kind: str = "directory"
    rank: Rank | None = None
    """Its place among several hosts; None where there is one."""
