"""Tells, once for each key, that a rank does not believe what stands in the store."""

import logging

log = logging.getLogger("hotreload.ranks")

MOST = 100
"""The most keys it is told of: it may be written under ever new ones."""
TODO = (
    "see who reaches the port of [engine] dist_init_addr, and whether all hosts have the same "
    "[engine] join_secret_file: `hotreload doctor --meet` compares them"
)


class Doubts:
    """Of one rank."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, key: str, why: str) -> None:
        """Say it in the log, unless it was said of this key, or of too many."""
        if key not in self._told and len(self._told) < MOST:
            self._told.add(key)
            log.error("ranks.not_believed", extra={"key": key, "why": why, "todo": TODO})
