"""What rank 0 asks of the others beside what it does to the engine, and in which words."""

from collections.abc import Mapping

from hotreload.types import Generation, Revision

HELLO, PREPARE, BUILD, LIVE = "hello", "prepare", "build", "live"

NUMBERS = "numbers"
"""The last number that a rank knows to be given to a generation, beside what ranks agree on."""


def live_words(live: Generation) -> dict[str, str]:
    """What went live, for the other ranks to write down."""
    return {
        "number": str(live.number),
        "revision": live.revision.id,
        "label": live.revision.label,
        "fingerprint": live.fingerprint,
        "since": repr(live.since),
    }


def revision_of(about: Mapping[str, str]) -> Revision:
    """Which revision is meant."""
    return Revision(about["revision"], about["label"])
