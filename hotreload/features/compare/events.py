"""The event of a comparison that was made after the weights went live."""

from dataclasses import dataclass

from hotreload.events.event import LateEvidence
from hotreload.json_fields import Fields, revision_fields
from hotreload.types import Evidence, Revision


@dataclass(frozen=True, slots=True)
class LiveCompared(LateEvidence):
    """New weights were compared with those before them, or that was cut short."""

    generation: int
    revision: Revision
    found: Evidence

    @property
    def name(self) -> str:
        return "behaviour.cut_short" if self.found.facts["not_compared"] else "behaviour.compared"

    @property
    def evidence(self) -> Evidence:
        return self.found

    def fields(self) -> Fields:
        return {"generation": self.generation, **revision_fields(self.revision), **self.found.facts}
