"""Troubles that stand and wait for somebody to mend them."""

import time
from collections.abc import Callable, Mapping

from hotreload.events import Event, TroubleTold
from hotreload.json_fields import Fields, iso


class TroublesNow:
    """Knows the troubles that are not over."""

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._standing: dict[str, tuple[TroubleTold, float]] = {}

    def observe(self, event: Event) -> None:
        """Take in a trouble that begins, goes on in other words, or is over."""
        if not isinstance(event, TroubleTold):
            return
        if event.message is None:
            self._standing = {c: s for c, s in self._standing.items() if c != event.code}
        else:
            _, since = self._standing.get(event.code, (event, self._wall()))
            self._standing = {**self._standing, event.code: (event, since)}

    @property
    def standing(self) -> Mapping[str, TroubleTold]:
        """The last word on each that stands, by its code."""
        return {code: told for code, (told, _) in self._standing.items()}

    def fields(self) -> list[Fields]:
        """Return them as the status shows them, the oldest first."""
        return [
            {"code": told.code, "message": told.message, "todo": told.todo, "since": iso(since)}
            for told, since in self._standing.values()
        ]
