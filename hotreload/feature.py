"""Describes one feature beside the kernel; this module imports nothing heavy."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hotreload.picture.words import WordAttempt
from hotreload.reasons import ReasonWords
from hotreload.types import Evidence

if TYPE_CHECKING:
    from hotreload.parts import FeatureParts, Given


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One feature. The kernel knows none; without a feature's line in the list the rest is
    unchanged."""

    name: str
    """The name of its table in the settings, and of its evidence."""
    settings: type[Any] | None = None
    """The table's class, a plain frozen dataclass; None where it has no settings."""
    blank: Evidence | None = None
    """The feature's evidence in an attempt that did not ask the feature."""
    words: WordAttempt | None = None
    """Puts the facts of the feature's evidence into words; without it the evidence's own words are
    used."""
    reasons: ReasonWords = field(default_factory=dict)
    """The feature's refusals by their code, which metrics export at 0 from the start."""
    begin: "Callable[[Given], FeatureParts]"
    """Make the feature's parts for a daemon; heavy modules are imported here."""
