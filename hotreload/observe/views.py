"""What the status asks of the core at the moment somebody looks."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from hotreload.types import Answering, Attempt, By, Refusal, Revision


class Overruled(Protocol):
    """An operator's choice that overrules the source."""

    @property
    def wish(self) -> Revision:
        """What the source still wishes."""
        ...

    @property
    def by(self) -> By:
        """Who chose another revision."""
        ...


class LedgerView(Protocol):
    """What the status shows of the ledger."""

    @property
    def refused(self) -> Mapping[str, Refusal]:
        """Revisions that are not tried again, by id."""
        ...

    @property
    def pinned(self) -> bool:
        """Whether an operator holds the live generation."""
        ...

    @property
    def pinned_by(self) -> By | None:
        """Who pinned it."""
        ...

    @property
    def overruled(self) -> Overruled | None:
        """The operator's choice that overrules the source, if there is one."""
        ...

    @property
    def history(self) -> Iterable[Attempt]:
        """The last attempts, newest first."""
        ...


class GateView(Protocol):
    """What the status shows of the gate before an engine."""

    @property
    def inside(self) -> int:
        """How many requests are being answered."""
        ...

    @property
    def held(self) -> int:
        """How many requests wait."""
        ...

    def answering(self) -> Sequence[Answering]:
        """Who answers requests in that engine, who is live first."""
        ...


class EntranceView(Protocol):
    """What the status shows of the way in for all requests."""

    @property
    def gates(self) -> Sequence[GateView]:
        """The gate before each engine, by the engine's index."""
        ...

    def answering(self) -> Sequence[Answering]:
        """Who answers requests in any engine, those that are live first."""
        ...
