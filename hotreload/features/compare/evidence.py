"""The evidence of a comparison, and its fields in JSON."""

from dataclasses import asdict

from hotreload.features.compare.behaviour import Behaviour
from hotreload.json_fields import Fields, rounded
from hotreload.types import Evidence

BEHAVIOUR = "behaviour"
"""The code of a refusal of weights that answer too differently from those that are live."""


def behaviour_fields(behaviour: Behaviour) -> Fields:
    """Return how new weights differ from the live ones; what was not measured is null."""
    fields: Fields = rounded(asdict(behaviour))
    return fields


def evidence_of(found: Behaviour | None, cut_short: str = "") -> Evidence:
    """Return what a comparison found, and how far it came if it was cut short."""
    agreement = f"answers agree {found.agreement:.0%}" if found else ""
    cut = f"comparison {cut_short}" if cut_short else ""
    outcome = "cut_short" if cut_short else "compared" if found else "none"
    facts = {"behaviour": found and behaviour_fields(found), "not_compared": cut_short or None}
    return Evidence("compare", outcome, ", ".join(filter(None, (agreement, cut))), facts)


BLANK = evidence_of(None)
"""The evidence where nothing was compared."""
