"""Troubles: faults that last until an operator mends them; each is logged once, and shown until
then.

The part that checks for a fault reports it by a `Trouble`; log, status, metrics, alerts and
`hotreload explain` know the fault by its code.
"""

from collections.abc import Iterable

from hotreload.events import Publish, TroubleNews

WAITS_FOR_FILES = "waits_for_files"
OLDER_ANSWERS = "older_answers"
FILES_GONE = "files_gone"
PROBE_DOUBTED = "probe_doubted"
SOURCE_EMPTY = "source_empty"
STATE_DAMAGED = "state_damaged"
STATE_MOVED = "state_moved"
SETTINGS_REFUSED = "settings_refused"
SOCKET_GONE = "socket_gone"

TROUBLES = (
    WAITS_FOR_FILES,
    OLDER_ANSWERS,
    FILES_GONE,
    PROBE_DOUBTED,
    SOURCE_EMPTY,
    STATE_DAMAGED,
    STATE_MOVED,
    SETTINGS_REFUSED,
    SOCKET_GONE,
)
"""Every code of the kernel; metrics export each from the start at 0."""


class Trouble:
    """One trouble: publishes its beginning, each change of its words, and its end."""

    def __init__(self, code: str, publish: Publish) -> None:
        self._code = code
        self._publish = publish
        self._standing: dict[str, tuple[str, str]] = {}
        self._message: str | None = None

    def set(self, message: str | None, todo: str = "", *, of: str = "") -> None:
        """Set the fault's message and what to do about it; None when there is no fault.

        May be called on each look: only a change is published. `of` names one of several things
        that may have this fault: the trouble ends when none of them has it.
        """
        if message is None:
            self._standing.pop(of, None)
        else:
            self._standing[of] = (message, todo)
        told = _join(words for words, _ in self._standing.values()) or None
        if told != self._message:
            self._message = told
            todos = _join(words for _, words in self._standing.values())
            self._publish(TroubleNews(self._code, told, todos))


def _join(words: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(words))
