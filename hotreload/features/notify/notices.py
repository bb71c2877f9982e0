"""Makes a notice of how an attempt ended."""

import json
import socket
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from hotreload.events import AttemptFinished, Event
from hotreload.features.notify.receiver import Receiver
from hotreload.json_fields import Fields, iso
from hotreload.types import START, Attempt, Outcome

FORWARD = frozenset((START, "reload", "perturb"))
"""Orders that bring new weights; each other order that makes weights live goes back."""


@dataclass(frozen=True, slots=True)
class Notice:
    """The end of one attempt, in each format."""

    id: str
    facts: Fields
    sentence: str

    def body(self, format: str) -> bytes:
        """Return the body of its POST."""
        return json.dumps({"text": self.sentence} if format == "slack" else self.facts).encode()


class EndNotices:
    """Observes attempts; gives a notice to each receiver that wants it."""

    def __init__(self, receivers: Sequence[Receiver], model: str) -> None:
        self._receivers = receivers
        self._model = model
        self._host = socket.gethostname()

    def observe(self, event: Event) -> None:
        """Take in that an attempt has ended."""
        if not (self._receivers and isinstance(event, AttemptFinished)):
            return
        ending = ending_of(event.attempt)
        more = {"id": f"msg_{uuid.uuid4().hex}", "event": ending, "at": iso(time.time())}
        facts = {**event.fields(), **more, "model": self._model, "host": self._host}
        notice = Notice(str(facts["id"]), facts, self._sentence(event.attempt, ending))
        for each in self._receivers:
            if ending in each.settings.on:
                each.put(notice)

    def _sentence(self, attempt: Attempt, ending: str) -> str:
        label = attempt.revision.label or attempt.revision.id
        words = f"{label}: {ending.replace('_', ' ')}"
        if attempt.generation is not None:
            words += f", generation {attempt.generation}"
        if attempt.reason is not None:
            words += f" ({attempt.reason.code}): {attempt.reason.message}"
        sentence = f"hotreload, {self._model} on {self._host}: {words}"
        # Slack reads these three as its markup.
        return sentence.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def ending_of(attempt: Attempt) -> str:
    """Return how an attempt ended, in a word of `[[notify]] on`."""
    is_back = attempt.by is not None and attempt.by.verb not in FORWARD
    if attempt.outcome is Outcome.LIVE and is_back:
        return "rolled_back"
    return attempt.outcome.value
