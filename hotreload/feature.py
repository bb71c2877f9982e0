"""A capability beside the kernel, as a list of features names it; it imports nothing heavy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hotreload.picture.words import WordAttempt
from hotreload.types import Evidence

if TYPE_CHECKING:
    from hotreload.parts import FeatureParts, Given


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One capability. The kernel knows none: without its line in the list the rest is as before."""

    name: str
    """The name of its table in the settings, and of its evidence."""
    settings: type[Any] | None = None
    """The table's class, a plain frozen dataclass; None where it has no settings."""
    blank: Evidence | None = None
    """Its evidence in the record of an attempt about which it was not asked."""
    words: WordAttempt | None = None
    """Puts the facts of its evidence into words; without it the evidence's own are said."""
    reasons: Sequence[str] = ()
    """The codes of its refusals, which metrics export at 0 from the start."""
    begin: "Callable[[Given], FeatureParts]"
    """Make what a daemon has of it; what is heavy is imported here."""
