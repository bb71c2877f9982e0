"""The form of messages between ranks, and bounds on their size and depth."""

import json
import math
import unicodedata
from collections.abc import Mapping
from typing import Any

from hotreload.types import Generation, Revision, Staged

MOST_TEXT = 4 << 20
"""Characters of a step or a ballot."""
LONGEST_WORDS = 20_000
LONGEST_NAME = 1024
"""Characters of a revision, a label or a fingerprint."""
MOST_NUMBER = 2**53
"""Of generations; where their numbers go by the clock, they are milliseconds."""


class NotBelieved(ValueError):
    """Said of what has not the form that a rank would give it."""


def parse_bounded(text: str, most: int = MOST_TEXT) -> Any:
    """Read JSON, if there are no more characters of it."""
    if len(text) > most:
        raise NotBelieved(f"{len(text)} characters, and there may be {most}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise NotBelieved("it is no JSON") from fault


def words(value: Any, most: int = LONGEST_WORDS) -> str:
    """A text without control characters, which could write lines of their own into a log."""
    if not isinstance(value, str) or len(value) > most:
        raise NotBelieved(f"there must be a text of up to {most} characters")
    return "".join(map(_escape, value))


def number(value: Any, least: int = 0, most: int = MOST_NUMBER) -> int:
    """A whole number, or one as text, within bounds."""
    is_text = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20
    found = int(value) if is_text or type(value) is int else None
    if found is None or not least <= found <= most:
        raise NotBelieved(f"there must be a number from {least} to {most}")
    return found


def table(value: Any) -> dict[str, str]:
    """A name and a text each."""
    if not isinstance(value, dict):
        raise NotBelieved("there must be names, each with a text")
    return {words(name): words(text) for name, text in value.items()}


def words_of(revision: Revision) -> dict[str, str]:
    """A revision as ranks name it to each other."""
    return {"revision": revision.id, "label": revision.label}


def revision_of(about: Mapping[str, str]) -> Revision:
    """Read which revision is meant."""
    return Revision(words(about["revision"], LONGEST_NAME), words(about["label"], LONGEST_NAME))


def _escape(char: str) -> str:
    return ascii(char)[1:-1] if unicodedata.category(char) == "Cc" else char


def live_words(live: Generation) -> dict[str, str]:
    """Say what went live, for the other ranks to write down."""
    return {
        "number": str(live.number),
        **words_of(live.revision),
        "fingerprint": live.fingerprint,
        "since": repr(live.since),
        "version": live.version,
    }


def live_of(about: Mapping[str, str], own: Staged) -> Generation:
    """Read what rank 0 has made live, which is `own` here; NotBelieved if it is nothing such."""
    fingerprint = words(about["fingerprint"], LONGEST_NAME)
    since = float(about["since"])
    if not math.isfinite(since):
        raise NotBelieved(f"{since} is no time")
    where = number(about["number"], 1), revision_of(about)
    version = words(about["version"], LONGEST_NAME)
    return Generation(*where, fingerprint, since, own.leaves, own.bytes, version)
