"""Why a candidate of a start does not answer, and whether a setting is to blame for it."""

from collections.abc import Sequence
from typing import NamedTuple

from hotreload.checkpoint.findings import INCOMPATIBLE
from hotreload.engine.upstream.build import DOES_NOT_START
from hotreload.errors import ConfigError
from hotreload.life.candidates import Candidate
from hotreload.life.served_by import UNFIT_MODEL

FOR_NO_ENGINE = {UNFIT_MODEL, DOES_NOT_START}
"""Why no engine can be started with weights that may be sound."""

OF_THE_SETTINGS = FOR_NO_ENGINE | INCOMPATIBLE - {"missing"}
"""Why weights are not served that no file would mend that comes back."""


class PassedBy(NamedTuple):
    """Why a candidate does not answer."""

    candidate: Candidate
    words: str
    code: str | None = None
    """None where it was not even tried."""


def nothing_to_start_with(refusals: Sequence[PassedBy], others_were_live: bool) -> ConfigError:
    """Nothing may answer; it says of each why not, and which setting would mend it."""
    told = "\n  ".join(f"{refusal.candidate.why}: {refusal.words}" for refusal in refusals)
    if not others_were_live:
        words = "nothing to start with; put a sound checkpoint into [engine] model"
        return ConfigError(f"{words}\n  {told}", code=UNFIT_MODEL)
    words = (
        "what was live last cannot be served with [engine] model as it is; set that to the model "
        'that it belongs to, or [engine] boot = "model" to start without it'
    )
    return ConfigError(f"{words}\n  {told}")
