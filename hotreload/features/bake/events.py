"""Events of bakes: what clients' answers say of new weights."""

from dataclasses import dataclass
from logging import INFO, WARNING

from hotreload.events.event import LateEvidence
from hotreload.features.bake.evidence import BAKE, bake_fields
from hotreload.features.bake.judgement import Bake, BakeOutcome
from hotreload.json_fields import Fields, revision_fields
from hotreload.types import Evidence, Revision

NOT_PROMOTED = {
    BakeOutcome.CONVICTED: "nothing at once: where it was live, hotreload goes back by itself and "
    "refuses it; look at the training run, and at `signals` for what its answers did",
    BakeOutcome.INCONCLUSIVE: "raise [bake] time, or [bake] max_time: it had too few answers",
}


@dataclass(frozen=True, slots=True)
class BakeChanged(LateEvidence):
    """A bake began, goes on beyond its time, or is over."""

    generation: int
    revision: Revision
    bake: Bake

    @property
    def name(self) -> str:
        begins = self.bake.outcome is BakeOutcome.BAKING
        return "bake.began" if begins else f"bake.{self.bake.outcome}"

    @property
    def level(self) -> int:
        return WARNING if self.bake.outcome in NOT_PROMOTED else INFO

    @property
    def todo(self) -> str:
        return NOT_PROMOTED.get(self.bake.outcome, "")

    @property
    def evidence(self) -> Evidence:
        outcome, why = self.bake.outcome.value, self.bake.words
        words = f"bake {outcome}: {why}" if why else ""
        return Evidence(BAKE, outcome, words, {"bake": bake_fields(self.bake)})

    def fields(self) -> Fields:
        added = revision_fields(self.revision) | bake_fields(self.bake)
        return {"generation": self.generation, **added}
