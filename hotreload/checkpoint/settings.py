"""Settings of the checks of a checkpoint."""

from dataclasses import dataclass
from typing import Annotated, Literal

from hotreload.setting import After, Deadline, Globs, Number, setting


def _factor(value: float) -> float:
    if value < 1:
        words = "it is a factor: 1 lets no tensor change, 10 lets its norm be ten times as large"
        raise ValueError(f"{value:g} would refuse every checkpoint; {words}")
    return value


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """The checks that a checkpoint must pass to be loaded at all."""

    extra_tensors: Globs = setting(
        (),
        "Patterns of tensors that a checkpoint may hold though the engine does not load them.",
        live=True,
        example=["*.rotary_emb.inv_freq"],
    )
    dtype_change: Literal["reject", "cast"] = setting(
        "reject", "What to do if a tensor's dtype is not the served one.", live=True
    )
    nonfinite: Literal["reject", "allow"] = setting(
        "reject", "What to do if weights hold NaN or Inf.", live=True
    )
    on_nonfinite_answers: Literal["alert", "rollback"] = setting(
        "alert",
        "What to do if the live weights make NaN of a client's prompt. The answer is withheld and "
        "the KV pool cleaned; rollback also rolls back and refuses the revision.",
    )
    max_drift: Annotated[Number, After(_factor)] | None = setting(
        None,
        "Refuse a checkpoint if a tensor's norm differs from the live one's by more than this "
        "factor.",
        live=True,
        example=10.0,
    )
    verify_live_every: Deadline | None = setting(
        None,
        "How often to compute the live weights' checksums anew; unset, never. It waits for a "
        "moment without requests, at most as long again. A difference raises an alert.",
        example="6h",
    )
