"""The ways a tiny checkpoint can be spoiled, to see which check notices."""

import difflib

from hotreload.tiny.misplaced import MISPLACED
from hotreload.tiny.misscaled import MISSCALED
from hotreload.tiny.outdated import OUTDATED
from hotreload.tiny.spoiling import Damage
from hotreload.tiny.unsound import UNSOUND

FLUENT: tuple[Damage, ...] = (*MISPLACED, *MISSCALED, *OUTDATED)
"""Wrong conversions: sound files of the right shapes, which only behaviour tells from good ones."""
DAMAGES: tuple[Damage, ...] = (*UNSOUND, *FLUENT)


def find_damage(kind: str) -> Damage:
    """Return the damage of that name."""
    kinds = {damage.kind: damage for damage in DAMAGES}
    if kind in kinds:
        return kinds[kind]
    close = difflib.get_close_matches(kind, kinds, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ValueError(f"no damage is called {kind!r}: {hint}choose from {', '.join(kinds)}")
