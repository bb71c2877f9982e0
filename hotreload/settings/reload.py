"""The settings of how a checkpoint goes live."""

from dataclasses import dataclass
from typing import Annotated, Literal

from hotreload.core.rules import Rules
from hotreload.setting import (
    Bounds,
    Deadline,
    PartOfTurns,
    Seconds,
    setting,
)
from hotreload.types import PROVE_WITHIN, Shares

DEFAULT_RULES = Rules()
DEFAULT_SHARES = Shares()


@dataclass(frozen=True, slots=True)
class ReloadSettings:
    """The way in which a checkpoint goes live."""

    mode: Literal["overlap", "drain"] = setting(
        "overlap",
        "overlap: the new weights answer new requests at once, those under way end under the old "
        "ones. drain: requests wait until those under way have ended. An engine that cannot "
        "overlap drains, and says why.",
    )
    rollout: Literal["rolling", "together"] = setting(
        "rolling",
        "How several engines take a checkpoint: one after the other, or all at once after all "
        "have proven it, which needs room for one more set on each. A failure puts all back.",
    )
    sets: Literal[2, 3, "auto"] = setting(
        2,
        "How many sets of weights may be on the device, those that still answer older requests "
        "included; auto is as many as fit, at most 6. For mode = 'overlap'.",
        live=True,
    )
    finish_timeout: Deadline | None = setting(
        None,
        "How long old weights may answer while a checkpoint waits for their room; unset, "
        "[server.limits] request_seconds. Then on_drain_timeout decides. For mode = 'overlap'.",
        live=True,
        example="2m",
    )
    fetch_timeout: Deadline = setting(
        DEFAULT_RULES.fetch_timeout,
        "How long the source may take to bring a checkpoint to this disk.",
        live=True,
    )
    validate_timeout: Deadline = setting(
        DEFAULT_RULES.validate_timeout, "How long the checks of a checkpoint may take.", live=True
    )
    stage_timeout: Deadline = setting(
        DEFAULT_RULES.stage_timeout,
        "How long loading may take. An attempt beyond one of these three timeouts is tried again "
        "later.",
        live=True,
    )
    drain_timeout: Deadline = setting(
        DEFAULT_RULES.drain_timeout,
        "How long requests may take to end before a swap with mode = 'drain', and before the KV "
        "pool is cleaned of NaN.",
        live=True,
    )
    on_drain_timeout: Literal["postpone", "abort", "replay"] = setting(
        "postpone",
        "If requests take longer than drain_timeout (or finish_timeout): try again later, abort "
        "them, or abort them and run those that have sent nothing again on the new weights.",
    )
    while_closed: Literal["hold", "refuse"] = setting(
        "hold",
        "Whether new requests wait or get 503 while the gate is closed: for a swap with mode = "
        "'drain', a pause, or while the KV pool is cleaned of NaN.",
    )
    max_held: Annotated[int, Bounds(least=0, is_strict=True)] = setting(
        1024,
        "How many requests may wait at a closed gate, and how many for a generation; the rest get "
        "503 with Retry-After.",
        live=True,
    )
    probe_timeout: Deadline = setting(
        DEFAULT_RULES.probe_timeout,
        "How long all probes together may take, else the answers count as bad. Beside clients "
        "twice that plus prove_within; over several hosts divided by shadow_share.",
        live=True,
    )
    shadow_share: PartOfTurns = setting(
        DEFAULT_SHARES.shadow,
        "How many steps a checkpoint under proof computes for each step of clients' answers, 0.05 "
        "to 1. Less: faster tokens meanwhile, and a longer proof. For mode = 'overlap'.",
    )
    prove_within: Deadline = setting(
        PROVE_WITHIN,
        "How long a proof should take: if steps are slow its share grows, up to 1; not over "
        "several hosts.",
    )
    fading_share: PartOfTurns = setting(
        DEFAULT_SHARES.fading,
        "The least share of their turns in which older weights compute, 0.05 to 1; more if they "
        "answer more requests. For mode = 'overlap'.",
    )
    min_interval: Seconds = setting(
        0.0, "The least time between a swap and the source's next checkpoint.", live=True
    )
    keep_previous: Literal["device", "host", "none"] = setting(
        DEFAULT_RULES.keep_previous.value,
        "Where the previous weights wait for a rollback, once their last request has ended.",
    )
    memory: Literal["double", "host", "auto"] = setting(
        "double",
        "Where new weights wait. double: on the device, beside the live ones. host: in host "
        "memory, with one set on the device; then swaps drain, and weights change places leaf by "
        "leaf. auto: double if two sets fit at the start, else host.",
    )

    def __post_init__(self) -> None:
        """ValueError says which settings contradict each other."""
        if self.on_drain_timeout == "replay" and self.while_closed == "refuse":
            raise ValueError(
                "on_drain_timeout = 'replay' needs while_closed = 'hold': what is replayed arrives "
                "while the gate is closed"
            )
