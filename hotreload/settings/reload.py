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
        description="How new weights take over: with overlap new requests are answered by them at "
        "once, and those under way end under the old ones; with drain requests wait until those "
        "under way have ended, so that two generations never answer at the same time. Where the "
        "engine cannot overlap, it drains and says why.",
    )
    rollout: Literal["rolling", "together"] = Field(
        default="rolling",
        description="In which order several engines (replicas) take a checkpoint: with rolling the "
        "first proves it and goes live, then the next, and a failure puts all back; with together "
        "all prove it, then all go live at once, which takes room for one more set on each.",
    )
    sets: Literal[2, 3, "auto"] = Field(
        default=2,
        description="How many sets of weights may be on the device, the live ones and those that "
        "still answer older requests included; with auto as many as memory holds, at most 6. A "
        "checkpoint is loaded when there is room for its set. For mode = 'overlap'.",
    )
    finish_timeout: Deadline | None = Field(
        default=None,
        description="How long old weights may go on answering when a checkpoint waits for their "
        "room; unset, [server.limits] request_seconds. After that on_drain_timeout decides. For "
        "mode = 'overlap'.",
        examples=["2m"],
    )
    fetch_timeout: Deadline = Field(
        default=DEFAULT_RULES.fetch_timeout,
        description="How long the source may take to bring a checkpoint's files to this disk.",
    )
    validate_timeout: Deadline = Field(
        default=DEFAULT_RULES.validate_timeout,
        description="How long the checks of a checkpoint may take; they read each byte that "
        "was not read for its name.",
    )
    stage_timeout: Deadline = Field(
        default=DEFAULT_RULES.stage_timeout,
        description="How long copying and loading a checkpoint may take. An attempt that takes "
        "longer than one of these three timeouts is given up and tried again later.",
    )
    drain_timeout: Deadline = Field(
        default=DEFAULT_RULES.drain_timeout,
        description="How long requests under way may take to end before a swap, in mode = 'drain'; "
        "and before the KV pool is cleaned of NaN.",
    )
    on_drain_timeout: Literal["postpone", "abort", "replay"] = Field(
        default="postpone",
        description="What to do when requests take longer than drain_timeout (or finish_timeout, "
        "where a checkpoint waits for room): try the swap later and wait longer each time, abort "
        "them, or abort them and let those that have sent nothing yet run again on the new "
        "weights.",
    )
    while_closed: Literal["hold", "refuse"] = Field(
        default="hold",
        description="Whether requests that arrive while the gate is closed wait or get 503 at "
        "once. It is closed for a swap in mode = 'drain', and while the KV pool is cleaned of NaN.",
    )
    max_held: Annotated[int, Field(strict=True, ge=0)] = Field(
        default=1024,
        description="How many requests may wait at a closed gate, and how many for a generation "
        "they ask for; the rest get 503 with Retry-After.",
    )
    probe_timeout: Deadline = Field(
        default=DEFAULT_RULES.probe_timeout,
        description="How long all probes together may take; if they take longer, the answers "
        "count as bad. Beside clients it is twice that and prove_within; over several hosts, "
        "divided by shadow_share.",
    )
    shadow_share: PartOfTurns = Field(
        default=DEFAULT_SHARES.shadow,
        description="How many steps a checkpoint that is being proven computes for each step of "
        "clients' answers, of whatever generations; 0.05 to 1. The less, the faster tokens come "
        "meanwhile, and the longer the probe takes. "
        "While nobody is answered it computes in every turn. For mode = 'overlap'.",
    )
    prove_within: Deadline = Field(
        default=PROVE_WITHIN,
        description="How long a proof is to take: where steps are slow its share grows for that, "
        "up to 1; over several hosts it does not.",
    )
    fading_share: PartOfTurns = Field(
        default=DEFAULT_SHARES.fading,
        description="In which part of their turns older weights compute a step for the requests "
        "that they still answer, at least; 0.05 to 1. It is more where they answer more: 3 "
        "requests beside 4 have three turns of four. At 1 they have every turn. For mode = "
        "'overlap'.",
    )
    min_interval: Seconds = Field(
        default=0.0,
        description="How long after a swap the source's next wish is left alone.",
    )
    keep_previous: Literal["device", "host", "none"] = Field(
        default=DEFAULT_RULES.keep_previous.value,
        description="Where the weights of the previous generation are kept for a rollback, once "
        "its last request has ended.",
    )
    memory: Literal["double", "host", "auto"] = Field(
        default="double",
        description="Where new weights wait: with double on the device, beside the live ones; with "
        "host in host memory, and one set at a time is on the device. Then swaps drain, and old "
        "and new weights change places leaf by leaf while no request is answered. auto looks at "
        "the start whether two sets fit on the device, and else is host.",
    )

    @model_validator(mode="after")
    def _replays_may_wait(self) -> Self:
        if self.on_drain_timeout == "replay" and self.while_closed == "refuse":
            raise ValueError(
                "on_drain_timeout = 'replay' needs while_closed = 'hold': what is replayed arrives "
                "while the gate is closed"
            )
        return self
