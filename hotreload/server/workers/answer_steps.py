"""Steps of a growing answer: only the difference between two pieces is sent.

Whole pieces would cost bytes that grow with the square of the answer's length.
"""

from typing import Any

from hotreload.json_fields import Fields

PieceStep = list[Any]
"""Three objects: fields with a new value, what was appended to fields, steps of inner objects."""


class StepMaker:
    """Makes the steps of one answer from its pieces."""

    def __init__(self) -> None:
        self._last: Fields = {}

    def step(self, piece: Fields) -> PieceStep | None:
        """Return the step from the last piece to this one; None if this one lacks fields."""
        last, self._last = self._last, piece
        return step_between(last, piece)


def step_between(last: Fields, now: Fields) -> PieceStep | None:
    """Return the step that turns `last` into `now`; None if `now` lacks fields."""
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
    """True if `now` is `before` with something appended; compares of a list the last item alone."""
    match before, now:
        case str(), str():
            return bool(before) and now.startswith(before)
        case list(), list():
            return 0 < len(before) <= len(now) and before[-1] == now[len(before) - 1]
    return False


def apply_step(last: Fields, step: PieceStep) -> Fields:
    """Return the next piece. The lists of the last one are extended in place."""
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
