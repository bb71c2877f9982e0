"""Reads messages of other ranks: their form, and bounds on their size and depth.

An invalid message counts as missing. The first invalid message under each key is logged.
"""

import asyncio
import json
import logging
import math
import time
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

from hotreload.hosts.upstream.ranks import Store
from hotreload.threads import in_thread
from hotreload.types import Generation, Revision, Staged

log = logging.getLogger("hotreload.ranks")

READ_SECONDS = 0.5
"""The longest wait of a thread in the store; a cancel takes effect after it."""
MOST_DOUBTS = 100
"""The most keys that are logged: an attacker may write ever new keys."""
DOUBT_TODO = (
    "see who reaches the port of [engine] dist_init_addr, and whether all hosts have the same "
    "[engine] join_secret_file: `hotreload doctor --meet` compares them"
)
MOST_TEXT = 4 << 20
"""The most characters of a step or a ballot."""
LONGEST_WORDS = 20_000
LONGEST_NAME = 1024
"""The most characters of a revision, a label or a fingerprint."""
MOST_NUMBER = 2**53
"""The highest number of a generation; a number by the clock counts milliseconds."""


class InvalidMessage(ValueError):
    """A message has not the form in which ranks write."""


def parse_bounded(text: str, most: int = MOST_TEXT) -> Any:
    """Parse JSON of at most so many characters."""
    if len(text) > most:
        raise InvalidMessage(f"{len(text)} characters, and there may be {most}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as fault:
        raise InvalidMessage("it is no JSON") from fault


def parse_text(value: Any, most: int = LONGEST_WORDS) -> str:
    """Return a text with its control characters escaped: they could forge lines of a log."""
    if not isinstance(value, str) or len(value) > most:
        raise InvalidMessage(f"there must be a text of up to {most} characters")
    return "".join(map(_escape, value))


def parse_number(value: Any, least: int = 0, most: int = MOST_NUMBER) -> int:
    """Return a whole number within bounds, given as a number or as digits."""
    is_text = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20
    found = int(value) if is_text or type(value) is int else None
    if found is None or not least <= found <= most:
        raise InvalidMessage(f"there must be a number from {least} to {most}")
    return found


def parse_table(value: Any) -> dict[str, str]:
    """Return a table of names and texts."""
    if not isinstance(value, dict):
        raise InvalidMessage("there must be names, each with a text")
    return {parse_text(name): parse_text(text) for name, text in value.items()}


def revision_fields(revision: Revision) -> dict[str, str]:
    """Return a revision as a message has it."""
    return {"revision": revision.id, "label": revision.label}


def parse_revision(about: Mapping[str, str]) -> Revision:
    """Return the revision that a message names."""
    return Revision(
        parse_text(about["revision"], LONGEST_NAME), parse_text(about["label"], LONGEST_NAME)
    )


def _escape(char: str) -> str:
    return ascii(char)[1:-1] if unicodedata.category(char) == "Cc" else char


def live_fields(live: Generation) -> dict[str, str]:
    """Return the live generation as a message to the other ranks, which record it."""
    return {
        "number": str(live.number),
        **revision_fields(live.revision),
        "fingerprint": live.fingerprint,
        "since": repr(live.since),
        "version": live.version,
    }


def parse_live(about: Mapping[str, str], own: Staged) -> Generation:
    """Return the generation that rank 0 has made live; `own` are its weights on this rank."""
    fingerprint = parse_text(about["fingerprint"], LONGEST_NAME)
    since = float(about["since"])
    if not math.isfinite(since):
        raise InvalidMessage(f"{since} is no time")
    where = parse_number(about["number"], 1), parse_revision(about)
    version = parse_text(about["version"], LONGEST_NAME)
    return Generation(*where, fingerprint, since, own.leaves, own.bytes, version)


class Doubts:
    """Logs values of the store that this rank does not believe, each key once."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def log_once(self, key: str, why: str) -> None:
        """Log the reason, unless this key was logged, or too many were."""
        if key not in self._logged and len(self._logged) < MOST_DOUBTS:
            self._logged.add(key)
            log.error("ranks.not_believed", extra={"key": key, "why": why, "todo": DOUBT_TODO})


class MessageReader:
    """Waits for messages of the other ranks."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._doubts = Doubts()

    async def receive[T](
        self, key: str, read: Callable[[str], T], within: float = math.inf
    ) -> T | None:
        """Wait for a value under the key that `read` accepts, and return it; None if none comes."""
        until = time.monotonic() + within
        while (left := until - time.monotonic()) > 0:
            text = await in_thread(lambda cancel: self._store.get(key, min(left, READ_SECONDS)))
            if text is None:
                continue
            try:
                return read(text)
            except InvalidMessage as why:
                self._doubts.log_once(key, str(why))
                await asyncio.sleep(min(left, READ_SECONDS))  # a rank may overwrite the value
        return None
