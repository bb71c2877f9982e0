"""Attempts with evidence of the features, as those of a daemon have it.

What is only some features' is imported when it is asked for: each of them can be deleted.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hotreload import troubles
from hotreload.attempts import NOT_PROBED, REJECTIONS, Attempt, Evidence, replace_evidence
from hotreload.core.judge import unproven_evidence
from hotreload.features import FEATURES
from tests.features.given import report_of

if TYPE_CHECKING:
    from hotreload.features.bake.evidence import Bake
    from hotreload.features.compare.evidence import Behaviour

BLANK = tuple(each.blank for each in FEATURES if each.blank)
REASONS = (*REJECTIONS, *(code for each in FEATURES for code in each.reasons))
"""Every reason that a daemon refuses a revision for."""

TROUBLES = (*troubles.TROUBLES, *(code for each in FEATURES for code in report_of(each).troubles))
"""Every code of a trouble."""
WORD = {each.blank.name: each.words for each in FEATURES if each.blank and each.words}


def judged(
    attempt: Attempt,
    *,
    unproven: str = "",
    baked: "Bake | None" = None,
    behaviour: "Behaviour | None" = None,
    not_compared: str = "",
    command_said: Sequence[str] = (),
) -> Attempt:
    """Return it with this evidence; what is not given was not asked."""
    evidence: tuple[Evidence, ...] = (NOT_PROBED, *BLANK)
    if unproven:
        evidence = replace_evidence(evidence, unproven_evidence(unproven))
    if baked:
        from hotreload.features.bake.evidence import BakeChanged

        evidence = replace_evidence(evidence, BakeChanged(0, attempt.revision, baked).evidence)
    if behaviour or not_compared:
        from hotreload.features.compare.evidence import evidence_of

        evidence = replace_evidence(evidence, evidence_of(behaviour, not_compared))
    if command_said:
        from hotreload.features.command import command

        end = command.CommandEnd(0, tuple(command_said))
        evidence = replace_evidence(evidence, command.evidence_of(end))
    return replace(attempt, evidence=evidence)


def in_json(facts: Any) -> Any:
    """Return facts as the state file and a client have them."""
    return json.loads(json.dumps(facts))
