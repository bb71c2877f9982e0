"""Terms for an engine in a program of one's own; each field is a setting's name."""

import math
from collections.abc import Callable, Iterator
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from hotreload.checkpoint.fit import Policy
from hotreload.core.rules import BY_MEMORY, KeepPrevious, Rules
from hotreload.engine.weights.memory.spare_processors import Threads, counted
from hotreload.engine.weights.sets import StagingOptions
from hotreload.errors import ConfigError
from hotreload.quiet import Quiet
from hotreload.types import PROVE_WITHIN, Shares

DAEMONS_RULES = Rules()
DAEMONS_SHARES = Shares()


@dataclass(frozen=True, slots=True)
class HotTerms:
    """Limits of what new weights may be, how they take over, and what is kept of those before."""

    dtype_change: Literal["reject", "cast"] = "reject"
    """`cast` lets weights have another float dtype than the model's: a trainer's float32."""
    extra_tensors: tuple[str, ...] = ()
    """Patterns of names that may be given though the model has no such tensor."""
    nonfinite: Literal["reject", "allow"] = "reject"
    max_drift: float | None = None
    """By which factor a leaf's root mean square may differ from the live one's."""
    mode: Literal["overlap", "drain"] = "overlap"
    sets: int | Literal["auto"] = DAEMONS_RULES.sets
    """The most sets of weights on the device; with `auto` as many as memory holds, at most 6."""
    keep_previous: Literal["device", "host", "none"] = "device"
    """Place where the weights before the live ones wait for a rollback."""
    memory: Literal["double", "host", "auto"] = "double"
    loader: Literal["auto", "upstream"] = "auto"
    staging_threads: Threads = 1
    """With `auto` as many as the machine has processors to spare."""
    stage_timeout: float = DAEMONS_RULES.stage_timeout
    """Time that the loading may take."""
    probe_timeout: float = DAEMONS_RULES.probe_timeout
    shadow_share: float = DAEMONS_SHARES.shadow
    """Steps of what is proven for each step of what is answered meanwhile."""
    prove_within: float = PROVE_WITHIN
    """Time of a proof, for which that share grows, up to 1."""
    fading_share: float = DAEMONS_SHARES.fading
    """The least part of their turns in which older weights compute."""
    drain_timeout: float = DAEMONS_RULES.drain_timeout
    finish_timeout: float = DAEMONS_RULES.finish_timeout
    """Time that older answers may keep the room that new weights need."""

    def __post_init__(self) -> None:
        """ConfigError lists every value that the daemon's setting of this name would refuse."""
        if faults := [*_faults(self)]:
            raise ConfigError.listing(faults)

    @property
    def policy(self) -> Policy:
        """The findings that the checks let pass."""
        return Policy(tuple(self.extra_tensors), self.dtype_change, self.nonfinite)

    @property
    def rules(self) -> Rules:
        """Time that each step may take, and what is kept after it."""
        return Rules(
            stage_timeout=self.stage_timeout,
            drain_timeout=self.drain_timeout,
            sets=self.sets,
            finish_timeout=self.finish_timeout,
            probe_timeout=self.probe_timeout,
            keep_previous=KeepPrevious(self.keep_previous),
            times_beside_clients=self.shares.times_as_long(self.probe_timeout),
        )

    @property
    def shares(self) -> Shares:
        """The parts of their turns in which weights compute that are not the live ones."""
        return Shares(self.shadow_share, self.fading_share, self.prove_within)

    def staging(self, spool: Path) -> StagingOptions:
        """Options of the loading: at usual priority, since the caller waits for it."""
        quiet = Quiet(counted(self.staging_threads, "normal"), "normal")
        return StagingOptions(spool, self.max_drift, self.loader, self.memory, quiet)


def _faults(terms: HotTerms) -> Iterator[str]:
    for each in fields(terms):
        value = getattr(terms, each.name)
        words, is_met = _rule_of(each)
        if not is_met(value):
            yield f"HotTerms({each.name}=…) must be {words}, not {value!r}"


def _rule_of(term: Field[Any]) -> "_Rule":
    if get_origin(term.type) is Literal:
        known = get_args(term.type)
        return " or ".join(map(repr, known)), known.__contains__
    return _RULES.get(term.name, _ABOVE_ZERO)


def _is_above_zero(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


_Rule = tuple[str, Callable[[Any], bool]]
"""Words for what a value must be, and the test of it."""
_ABOVE_ZERO: _Rule = "a number above 0", _is_above_zero
_SHARE: _Rule = (
    "a number from 0.05 to 1",
    lambda value: type(value) in (int, float) and 0.05 <= value <= 1,
)
_RULES: dict[str, _Rule] = {
    "extra_tensors": (
        "patterns of names",
        lambda value: type(value) in (tuple, list) and all(type(each) is str for each in value),
    ),
    "max_drift": (
        "None or a factor of at least 1",
        lambda value: value is None or (_is_above_zero(value) and value >= 1),
    ),
    "shadow_share": _SHARE,
    "fading_share": _SHARE,
    "sets": (
        "2 or 3 or 'auto'",
        lambda value: value == BY_MEMORY or (type(value) is int and value in (2, 3)),
    ),
    "staging_threads": (
        "a whole number, at least 1, or 'auto'",
        lambda value: value == "auto" or (type(value) is int and value >= 1),
    ),
}
