"""The settings of how a checkpoint goes live."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hotreload.core.rules import Rules
from hotreload.settings.kinds import (
    Deadline,
    PartOfTurns,
    Seconds,
)
from hotreload.settings.tables import SettingsTable
from hotreload.types import PROVE_WITHIN, Shares

DEFAULT_RULES = Rules()
DEFAULT_SHARES = Shares()


class ReloadSettings(SettingsTable):
    """The way in which a checkpoint goes live."""

    mode: Literal["overlap", "drain"] = Field(
        default="overlap",
        description="overlap: the new weights answer new requests at once, those under way end "
        "under the old ones. drain: requests wait until those under way have ended. An engine "
        "that cannot overlap drains, and says why.",
    )
    rollout: Literal["rolling", "together"] = Field(
        default="rolling",
        description="How several engines take a checkpoint: one after the other, or all at once "
        "after all have proven it, which needs room for one more set on each. A failure puts all "
        "back.",
    )
    sets: Literal[2, 3, "auto"] = Field(
        default=2,
        description="How many sets of weights may be on the device, those that still answer "
        "older requests included; auto is as many as fit, at most 6. For mode = 'overlap'.",
    )
    finish_timeout: Deadline | None = Field(
        default=None,
        description="How long old weights may answer while a checkpoint waits for their room; "
        "unset, [server.limits] request_seconds. Then on_drain_timeout decides. For mode = "
        "'overlap'.",
        examples=["2m"],
    )
    fetch_timeout: Deadline = Field(
        default=DEFAULT_RULES.fetch_timeout,
        description="How long the source may take to bring a checkpoint to this disk.",
    )
    validate_timeout: Deadline = Field(
        default=DEFAULT_RULES.validate_timeout,
        description="How long the checks of a checkpoint may take.",
    )
    stage_timeout: Deadline = Field(
        default=DEFAULT_RULES.stage_timeout,
        description="How long loading may take. An attempt beyond one of these three timeouts is "
        "tried again later.",
    )
    drain_timeout: Deadline = Field(
        default=DEFAULT_RULES.drain_timeout,
        description="How long requests may take to end before a swap with mode = 'drain', and "
        "before the KV pool is cleaned of NaN.",
    )
    on_drain_timeout: Literal["postpone", "abort", "replay"] = Field(
        default="postpone",
        description="If requests take longer than drain_timeout (or finish_timeout): try again "
        "later, abort them, or abort them and run those that have sent nothing again on the new "
        "weights.",
    )
    while_closed: Literal["hold", "refuse"] = Field(
        default="hold",
        description="Whether new requests wait or get 503 while the gate is closed: for a swap "
        "with mode = 'drain', a pause, or while the KV pool is cleaned of NaN.",
    )
    max_held: Annotated[int, Field(strict=True, ge=0)] = Field(
        default=1024,
        description="How many requests may wait at a closed gate, and how many for a generation; "
        "the rest get 503 with Retry-After.",
    )
    probe_timeout: Deadline = Field(
        default=DEFAULT_RULES.probe_timeout,
        description="How long all probes together may take, else the answers count as bad. "
        "Beside clients twice that plus prove_within; over several hosts divided by shadow_share.",
    )
    shadow_share: PartOfTurns = Field(
        default=DEFAULT_SHARES.shadow,
        description="How many steps a checkpoint under proof computes for each step of clients' "
        "answers, 0.05 to 1. Less: faster tokens meanwhile, and a longer proof. For mode = "
        "'overlap'.",
    )
    prove_within: Deadline = Field(
        default=PROVE_WITHIN,
        description="How long a proof should take: if steps are slow its share grows, up to 1; "
        "not over several hosts.",
    )
    fading_share: PartOfTurns = Field(
        default=DEFAULT_SHARES.fading,
        description="The least share of their turns in which older weights compute, 0.05 to 1; "
        "more if they answer more requests. For mode = 'overlap'.",
    )
    min_interval: Seconds = Field(
        default=0.0,
        description="The least time between a swap and the source's next checkpoint.",
    )
    keep_previous: Literal["device", "host", "none"] = Field(
        default=DEFAULT_RULES.keep_previous.value,
        description="Where the previous weights wait for a rollback, once their last request has "
        "ended.",
    )
    memory: Literal["double", "host", "auto"] = Field(
        default="double",
        description="Where new weights wait. double: on the device, beside the live ones. host: "
        "in host memory, with one set on the device; then swaps drain, and weights change places "
        "leaf by leaf. auto: double if two sets fit at the start, else host.",
    )

    @model_validator(mode="after")
    def _replays_may_wait(self) -> Self:
        if self.on_drain_timeout == "replay" and self.while_closed == "refuse":
            raise ValueError(
                "on_drain_timeout = 'replay' needs while_closed = 'hold': what is replayed arrives "
                "while the gate is closed"
            )
        return self
