"""The evidence of a comparison."""

from hotreload.json_fields import behaviour_fields
from hotreload.judgements import Behaviour
from hotreload.types import Evidence


def evidence_of(found: Behaviour | None, cut_short: str = "") -> Evidence:
    """Return what a comparison found, and how far it came if it was cut short."""
    agreement = f"answers agree {found.agreement:.0%}" if found else ""
    cut = f"comparison {cut_short}" if cut_short else ""
    outcome = "cut_short" if cut_short else "compared" if found else "none"
    facts = {"behaviour": found and behaviour_fields(found), "not_compared": cut_short or None}
    return Evidence("compare", outcome, ", ".join(filter(None, (agreement, cut))), facts)


BLANK = evidence_of(None)
"""The evidence where nothing was compared."""
