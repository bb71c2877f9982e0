"""Terms for an engine in your own program; each field is named as the daemon's setting."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from hotreload.checkpoint.fit import Policy
from hotreload.core.rules import USUAL_RULES, KeepPrevious, Rules
from hotreload.engine.weights.memory.spare_processors import Threads, count_threads
from hotreload.engine.weights.sets import StagingOptions
from hotreload.errors import ConfigError
from hotreload.quiet import Quiet
from hotreload.types import Mode


@dataclass(frozen=True, slots=True)
class HotTerms:
    """Limits of new weights, the way they take over, and the place of earlier weights."""

    dtype_change: Literal["reject", "cast"] = "reject"
    """`cast` accepts another float dtype than the model's, as float32 from a trainer."""
    extra_tensors: tuple[str, ...] = ()
    """Patterns of names that are accepted although the model has no such tensor."""
    nonfinite: Literal["reject", "allow"] = "reject"
    max_drift: float | None = None
    """The factor by which a leaf's root mean square may differ from the live one's."""
    mode: Literal["overlap", "drain"] = "overlap"
    sets: Literal[2, 3, "auto"] = USUAL_RULES.sets
    """The most sets of weights on the device; `auto`: as many as memory holds, at most 6."""
    keep_previous: Literal["device", "host", "none"] = "device"
    """The place where the previous weights wait for a rollback."""
    memory: Literal["double", "host", "auto"] = "double"
    loader: Literal["auto", "upstream"] = "auto"
    staging_threads: Threads = 1
    """The threads of a load; `auto`: as many as the machine has processors to spare."""
    stage_timeout: float = USUAL_RULES.stage_timeout
    """The longest time of a load."""
    probe_timeout: float = USUAL_RULES.probe_timeout
    shadow_share: float = USUAL_RULES.shadow_share
    """The engine's steps for the probes, for each step that answers requests meanwhile."""
    prove_within: float = USUAL_RULES.prove_within
    """The time a proof should take: `shadow_share` grows for it, up to 1."""
    fading_share: float = USUAL_RULES.fading_share
    """The least share of steps in which older weights compute."""
    drain_timeout: float = USUAL_RULES.drain_timeout
    finish_timeout: float = USUAL_RULES.finish_timeout
    """The longest time that older answers may keep memory that new weights need."""

    def __post_init__(self) -> None:
        """ConfigError lists each value that the daemon would refuse for the setting."""
        if faults := [*_find_faults(self)]:
            raise ConfigError.from_faults(faults)

    @property
    def policy(self) -> Policy:
        """The findings that the checks let pass."""
        return Policy(tuple(self.extra_tensors), self.dtype_change, self.nonfinite)

    @property
    def rules(self) -> Rules:
        """The limits of a switch's steps, and the place of earlier weights."""
        both = {each.name for each in fields(self)} & {each.name for each in fields(Rules)}
        given: dict[str, Any] = {name: getattr(self, name) for name in both}
        words = {"mode": Mode(self.mode), "keep_previous": KeepPrevious(self.keep_previous)}
        return Rules(**{**given, **words})

    def staging_options(self, spool: Path) -> StagingOptions:
        """Return the options of a load, at normal priority: the caller waits for it."""
        quiet = Quiet(count_threads(self.staging_threads, "normal"), "normal")
        return StagingOptions(spool, self.max_drift, self.loader, self.memory, quiet)


def _find_faults(terms: HotTerms) -> Iterator[str]:
    for each in fields(terms):
        value = getattr(terms, each.name)
        words, is_met = _find_rule(each)
        if not is_met(value):
            yield f"HotTerms({each.name}=…) must be {words}, not {value!r}"


def _find_rule(term: Field[Any]) -> "_Rule":
    if get_origin(term.type) is Literal:
        known = get_args(term.type)
        return " or ".join(map(repr, known)), lambda value: _is_one_of(known, value)
    return _RULES.get(term.name, _ABOVE_ZERO)


def _is_one_of(known: Sequence[Any], value: Any) -> bool:
    return any(type(each) is type(value) and each == value for each in known)


def _is_above_zero(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf


_Rule = tuple[str, Callable[[Any], bool]]
"""The words for a valid value, and the test for one."""
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
    "staging_threads": (
        "a whole number, at least 1, or 'auto'",
        lambda value: value == "auto" or (type(value) is int and value >= 1),
    ),
}
