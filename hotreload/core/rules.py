"""The settings of how a checkpoint goes live, and the rules that they make for attempts."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, Literal

from hotreload.setting import Bounds, Deadline, PartOfTurns, Seconds, setting
from hotreload.types import Mode, Shares

BY_MEMORY: Final = "auto"
"""Value of `sets` for as many sets of weights as memory holds, up to `MOST_SETS`."""
LONGEST_REQUEST = 600.0
"""Seconds that a request may take unless a setting says otherwise."""
MOST_SETS = 6
"""The most sets of weights where memory decides: each lane takes turns and slows tokens."""


class KeepPrevious(StrEnum):
    """The place of the previous generation's weights for a rollback."""

    DEVICE = "device"
    HOST = "host"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class ReloadSettings:
    """The way in which a checkpoint goes live."""

    mode: Mode = setting(
        Mode.OVERLAP,
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
        3600.0,
        "How long the source may take to bring a checkpoint to this disk.",
        live=True,
    )
    validate_timeout: Deadline = setting(
        1800.0, "How long the checks of a checkpoint may take.", live=True
    )
    stage_timeout: Deadline = setting(
        1800.0,
        "How long loading may take. An attempt beyond one of these three timeouts is tried again "
        "later.",
        live=True,
    )
    drain_timeout: Deadline = setting(
        30.0,
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
        30.0,
        "How long all probes together may take, else the answers count as bad. Beside clients "
        "twice that plus prove_within; over several hosts divided by shadow_share.",
        live=True,
    )
    shadow_share: PartOfTurns = setting(
        0.25,
        "How many steps a checkpoint under proof computes for each step of clients' answers, 0.05 "
        "to 1. Less: faster tokens meanwhile, and a longer proof. For mode = 'overlap'.",
    )
    prove_within: Deadline = setting(
        5.0,
        "How long a proof should take: if steps are slow its share grows, up to 1; not over "
        "several hosts.",
    )
    fading_share: PartOfTurns = setting(
        0.5,
        "The least share of their turns in which older weights compute, 0.05 to 1; more if they "
        "answer more requests. For mode = 'overlap'.",
    )
    min_interval: Seconds = setting(
        0.0, "The least time between a swap and the source's next checkpoint.", live=True
    )
    keep_previous: KeepPrevious = setting(
        KeepPrevious.DEVICE,
        "Where the previous weights wait for a rollback, once their last request has ended.",
    )
    memory: Literal["double", "host", "auto"] = setting(
        "double",
        "Where new weights wait. double: on the device, beside the live ones. host: in host "
        "memory, with one set on the device; then swaps drain, and weights change places leaf by "
        "leaf. auto: double if two sets fit at the start, else host.",
    )

    @property
    def sets_planned(self) -> tuple[int, ...]:
        """The sets of weights for which an engine leaves room on its devices, if it can."""
        if self.memory != "double":
            return (1,) if self.memory == "host" else (2, 1)
        return (2 if self.sets == BY_MEMORY else self.sets,)

    def __post_init__(self) -> None:
        """ValueError says which settings contradict each other."""
        if self.on_drain_timeout == "replay" and self.while_closed == "refuse":
            raise ValueError(
                "on_drain_timeout = 'replay' needs while_closed = 'hold': what is replayed arrives "
                "while the gate is closed"
            )


@dataclass(frozen=True, slots=True)
class Rules(ReloadSettings):
    """The settings of [reload] with what other tables decide of an attempt: `Settings.rules`."""

    longest_drain: float = LONGEST_REQUEST
    """The longest time a request may run: after it a drain has seen every request end."""
    finish_timeout: float = LONGEST_REQUEST
    """Seconds that older requests may take when new weights need their room."""
    hosts: int = 1
    """The number of hosts that share the engine."""

    @property
    def abort_on_drain_timeout(self) -> bool:
        """True if requests that take too long are aborted."""
        return self.on_drain_timeout != "postpone"

    @property
    def together(self) -> bool:
        """True to have all engines ready before any of them goes live."""
        return self.rollout == "together"

    @property
    def most_sets(self) -> int:
        """The most sets of weights on the device, whatever memory there is."""
        return MOST_SETS if self.sets == BY_MEMORY else self.sets

    @property
    def shares(self) -> Shares:
        """In which part of their turns weights compute that are not the live ones."""
        prove_within = self.prove_within if self.hosts == 1 else None
        return Shares(self.shadow_share, self.fading_share, prove_within)

    @property
    def proving_timeout(self) -> float:
        """Seconds for the probes while clients are answered."""
        return self.probe_timeout * self.shares.times_as_long(self.probe_timeout)


USUAL_RULES = Rules()
"""The rules where no setting says otherwise."""
