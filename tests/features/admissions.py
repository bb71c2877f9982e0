"""Finds a feature's admission or listener among all of them."""

from collections.abc import Iterable, Mapping
from typing import Any

from hotreload.core.way_in.admission import Admission, AnswerCallbacks
from hotreload.core.way_in.entrance import Entrance


def admission_of[A: Admission](entrance: Entrance[Any], kind: type[A]) -> A:
    """The one of this kind."""
    return next(each for each in entrance.admissions if isinstance(each, kind))


def end_answer(callbacks: AnswerCallbacks | None, index: int, answer: Mapping[str, Any]) -> None:
    """Call the listener as at the end of an answer; it must want that."""
    assert callbacks is not None
    assert callbacks.ended is not None
    callbacks.ended(index, answer)


def listener_of[L](listeners: Iterable[object], kind: type[L]) -> L:
    """The one of this kind."""
    return next(each for each in listeners if isinstance(each, kind))
