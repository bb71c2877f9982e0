"""An answer that grows, told by what is new of each piece: as whole ones they would grow with the
square of its length."""

from typing import Any

from hotreload.json_fields import Fields

PieceStep = list[Any]
"""Fields that have another value, those that only grew and by how much, and those of which parts
changed so."""


class StepMaker:
    """Makes steps of the pieces of one answer."""

    def __init__(self) -> None:
        self._last: Fields = {}

    def step(self, piece: Fields) -> PieceStep | None:
        """Say what is new since the last piece; None if that has fields which this one lacks."""
        last, self._last = self._last, piece
        return step_between(last, piece)


def step_between(last: Fields, now: Fields) -> PieceStep | None:
    """Say what has to be done to `last` to have `now`; None if fields have gone."""
    if not last.keys() <= now.keys():
        return None
    others: Fields = {}
    grown: Fields = {}
    within: Fields = {}
    for name, value in now.items():
        before = last.get(name)
        if value == before and name in last:
            continue
        if has_grown(before, value):
            grown[name] = value[len(last[name]) :]
        elif (step := _step_within(before, value)) is not None:
            within[name] = step
        else:
            others[name] = value
    return [others, grown, within]


def _step_within(before: Any, now: Any) -> PieceStep | None:
    if isinstance(before, dict) and isinstance(now, dict):
        return step_between(before, now)
    return None


def has_grown(before: Any, now: Any) -> bool:
    """True if it is a text or a list that begins with all of what it was; lists only grow here."""
    match before, now:
        case str(), str():
            return bool(before) and now.startswith(before)
        case list(), list():
            return 0 < len(before) <= len(now) and before[-1] == now[len(before) - 1]
    return False


def apply_step(last: Fields, step: PieceStep) -> Fields:
    """Make the next piece of the last one, which stays as it is but for its lists: they grow."""
    others, grown, within = step
    now = {**last, **others}
    for name, more in grown.items():
        if isinstance(more, str):
            now[name] += more
        else:
            now[name].extend(more)
    for name, inner in within.items():
        now[name] = apply_step(now[name], inner)
    return now
