"""Attempts with evidence of the features, as those of a daemon have it."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hotreload import troubles
from hotreload.core.probing import not_probed
from hotreload.errors import REJECTIONS
from hotreload.features import FEATURES
from hotreload.features.bake import evidence as bake
from hotreload.features.bake.events import BakeTold
from hotreload.features.bake.judgement import Bake
from hotreload.features.bake.report import BakeReport
from hotreload.features.command import evidence as command
from hotreload.features.compare import evidence as compare
from hotreload.features.compare.behaviour import Behaviour
from hotreload.features.pause.report import PauseReport
from hotreload.types import NOT_PROBED, Attempt

BLANK = (bake.BLANK, compare.BLANK, command.BLANK)
REASONS = (*REJECTIONS, *(code for each in FEATURES for code in each.reasons))
"""Every reason that a daemon refuses a revision for."""

TROUBLES = (*troubles.TROUBLES, *PauseReport.troubles, *BakeReport.troubles)
"""Every code of a trouble."""
WORD = {each.blank.name: each.words for each in FEATURES if each.blank and each.words}


def judged(
    attempt: Attempt,
    *,
    unproven: str = "",
    baked: Bake | None = None,
    behaviour: Behaviour | None = None,
    not_compared: str = "",
    command_said: Sequence[str] = (),
) -> Attempt:
    """Return it with this evidence; what is not given was not asked."""
    end = command.CommandEnd(0, tuple(command_said))
    evidence = (
        not_probed(unproven) if unproven else NOT_PROBED,
        BakeTold(0, attempt.revision, baked).evidence if baked else bake.BLANK,
        compare.evidence_of(behaviour, not_compared),
        command.evidence_of(end) if command_said else command.BLANK,
    )
    return replace(attempt, evidence=evidence)


def in_json(facts: Any) -> Any:
    """Return facts as the state file and a client have them."""
    return json.loads(json.dumps(facts))
