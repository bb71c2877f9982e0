"""A ledger as JSON: the schema of the state file, and how each older one is understood."""

import json
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from pydantic import TypeAdapter

from hotreload.attempts import Attempt, By, Refusal
from hotreload.core.ledger import (
    KEPT_ATTEMPTS,
    KEPT_GENERATIONS,
    KEPT_PINS,
    Ledger,
    Overrule,
    PastGeneration,
    ServedBy,
)
from hotreload.errors import CheckpointChanged
from hotreload.json_fields import Fields, iso, round_numbers
from hotreload.types import Revision

VERSION = 13
"""The version of the state file; a change of `Memory` raises it and adds to `_ADDED`."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The part of a ledger that survives a restart; its fields are the state file's."""

    version: int
    generations: list[PastGeneration]
    refused: list[Refusal]
    history: list[Attempt]
    """The ledger's `attempts`."""
    pinned: bool
    under_way: Revision | None
    crashes: dict[str, int]
    lost_at: float
    numbers_given: int
    overruled: Overrule | None
    pins: list[By]
    served_by: ServedBy | None
    missed: PastGeneration | None
    damage: str | None
    contents: dict[str, str]


KEPT_ALIKE = (
    *("pinned", "under_way", "crashes", "lost_at", "numbers_given"),
    *("overruled", "served_by", "missed", "damage"),
)
"""The fields that a ledger and its memory have alike."""
_MEMORY = TypeAdapter(Memory)
_CHECKSUM = ',\n "checksum": '
"""Before the checksum of all that stands before this; files of before have none."""


def to_json(ledger: Ledger) -> bytes:
    """Return what must survive a restart; bytes of a path that are no text do so as escapes."""
    memory = Memory(
        version=VERSION,
        generations=list(ledger.generations),
        refused=list(ledger.refused.values()),
        history=list(ledger.attempts),
        pins=list(ledger.pins),
        contents=dict(ledger.contents),  # at once: those who read files note them in threads
        **{name: getattr(ledger, name) for name in KEPT_ALIKE},
    )
    fields = _MEMORY.dump_python(memory, mode="json")
    lines = (f'"{name}": {json.dumps(value)}' for name, value in fields.items())
    known = "{\n " + ",\n ".join(lines)
    return f'{known}{_CHECKSUM}"{_checksum(known)}"\n}}'.encode()


def _checksum(text: str) -> str:
    return blake2b(text.encode(), digest_size=8).hexdigest()


class NewerState(ValueError):
    """The file was written by a later version of hotreload, which can still use it."""


def _evidence_of(attempt: dict[str, Any]) -> Iterator[Fields]:
    """Make evidence of the fields that each judge had of its own in an attempt."""
    why = attempt.get("unproven") or None
    yield _evidence("probe", "unproven" if why else "none", why, unproven=why)
    outcome, words, facts = "none", "", None
    if (bake := attempt.get("bake")) is not None:
        outcome, facts = bake["outcome"], _bake_facts(bake)
        words = f"bake {outcome}: {facts['reason']}" if facts["reason"] else ""
    yield _evidence("bake", outcome, words, bake=facts)
    outcome, words, facts = "none", attempt.get("not_compared", ""), None
    if (found := attempt.get("behaviour")) is not None:
        outcome, facts = "compared", round_numbers({**_NOT_MEASURED, **found})
    outcome = "cut_short" if words else outcome
    yield _evidence("compare", outcome, words, behaviour=facts, not_compared=words or None)
    said = attempt.get("command_said", [])
    yield _evidence("command", "asked" if said else "none", " / ".join(said), command_said=said)


_NOT_MEASURED = {
    **{"right_answers": None, "seconds": 0.0, "heard": 0, "heard_tokens": 0},
    **dict.fromkeys(("heard_kl", "heard_noise_kl", "heard_same_top", "heard_perplexity_ratio")),
}
"""Figures of a comparison that its first versions did not have."""


def _bake_facts(bake: Fields) -> Fields:
    counts = ("answers", "against", "old_answers")
    return {
        **{"outcome": bake["outcome"], "since": iso(bake["since"]), "until": iso(bake["until"])},
        **{name: bake.get(name) for name in counts},
        "reason": bake.get("words") or None,
        "signals": [_signal_facts(each) for each in bake.get("signals", ())],
    }


def _signal_facts(count: Fields) -> Fields:
    spelled = {"hits": "answers", "old_hits": "old_answers"}
    return {
        spelled.get(name, name): round(each, 6) if isinstance(each, float) else each
        for name, each in count.items()
    }


def _evidence(name: str, outcome: str, words: str | None, **facts: Any) -> Fields:
    return {"name": name, "outcome": outcome, "words": words or "", "facts": facts}


def _forget_worst_answers(attempt: dict[str, Any]) -> None:
    if behaviour := attempt.get("behaviour"):
        behaviour["worst"] = []  # they were words, not answers


def _add_evidence(attempt: dict[str, Any]) -> None:
    attempt["evidence"] = [*_evidence_of(attempt)]


_ADDED: dict[int, dict[str, Any]] = {
    1: {"lost_at": 0.0, "numbers_given": 0},
    2: {"overruled": None, "pins": []},
    4: {"served_by": None, "missed": None},
    5: {"damage": None},
    11: {"contents": {}},
}
"""The fields that the version after this one added; the other versions changed only their parts."""
_CHANGED: dict[int, Callable[[dict[str, Any]], None]] = {
    8: _forget_worst_answers,
    10: _add_evidence,
}
"""The change that the version after this one made to each attempt of the history."""


def _migrate(memory: Any) -> dict[str, Any]:
    version = memory.get("version") if isinstance(memory, dict) else None
    if not isinstance(version, int):
        raise ValueError("it has no version")
    if version > VERSION:
        raise NewerState(f"it has version {version}, and this hotreload knows {VERSION}")
    if version < 1:
        raise ValueError(f"version {version} is not known")
    for older in range(version, VERSION):
        memory = {**_ADDED.get(older, {}), **memory}
        for attempt in memory["history"] if older in _CHANGED else ():
            _CHANGED[older](attempt)
    return {**memory, "version": VERSION}


def _load(text: str) -> dict[str, Any]:
    try:
        memory = _migrate(json.loads(text))
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    except (AttributeError, KeyError, TypeError):
        raise ValueError("its history holds no attempts") from None
    known = text.rpartition(_CHECKSUM)[0]
    if memory.get("checksum", _checksum(known)) != _checksum(known):
        raise ValueError("its checksum is not that of what it holds")
    return memory


def _is_verdict(refusal: Refusal) -> bool:
    """True if it says something of the bytes; older versions refused those that changed, too."""
    return refusal.reason.code != CheckpointChanged.code


def from_json(data: bytes) -> Ledger:
    """Rebuild a ledger, from an older version's data too.

    ValueError says why the data is bad; NewerState asks for an upgrade.
    """
    memory = _MEMORY.validate_python(_load(data.decode()))
    return Ledger(
        refused={each.revision.id: each for each in memory.refused if _is_verdict(each)},
        generations=deque(memory.generations, maxlen=KEPT_GENERATIONS),
        attempts=deque(memory.history, maxlen=KEPT_ATTEMPTS),
        pins=deque(memory.pins, maxlen=KEPT_PINS),
        contents=memory.contents,
        **{name: getattr(memory, name) for name in KEPT_ALIKE},
    )
