"""Words in which ranks tell each other of generations."""

import math
from collections.abc import Mapping

from hotreload.hosts.bounds import LONGEST_NAME, NotBelieved, number, revision_of, words, words_of
from hotreload.types import Generation, Staged

NUMBERS = "numbers"
"""The last number that a rank knows to be given to a generation, beside what ranks agree on."""


def live_words(live: Generation) -> dict[str, str]:
    """Say what went live, for the other ranks to write down."""
    return {
        "number": str(live.number),
        **words_of(live.revision),
        "fingerprint": live.fingerprint,
        "since": repr(live.since),
    }


def live_of(about: Mapping[str, str], own: Staged) -> Generation:
    """Read what rank 0 has made live, which is `own` here; NotBelieved if it is nothing such."""
    fingerprint = words(about["fingerprint"], LONGEST_NAME)
    since = float(about["since"])
    if not math.isfinite(since):
        raise NotBelieved(f"{since} is no time")
    where = number(about["number"], 1), revision_of(about)
    return Generation(*where, fingerprint, since, own.leaves, own.bytes)
