"""Finds a feature's admission or listener among all of them."""

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from hotreload.core.way_in.admission import Admission, AnswerCallbacks, LetIn, Listener
from hotreload.core.way_in.entrance import Entrance


def admission_of[A: Admission](entrance: Entrance[Any], kind: type[A]) -> A:
    """The one of this kind."""
    return next(each for each in entrance.admissions if isinstance(each, kind))


def end_answer(callbacks: AnswerCallbacks, index: int, answer: Mapping[str, Any]) -> None:
    """Call the listener, if it wants that, as at the end of an answer."""
    if callbacks.ended is not None:
        callbacks.ended(index, answer)


def listening(listener: Listener, request: LetIn) -> AbstractContextManager[AnswerCallbacks]:
    """The block of a request; of one that is ignored it wants nothing."""
    return listener.listen(request) or nullcontext(AnswerCallbacks())


def listener_of[L](listeners: Iterable[object], kind: type[L]) -> L:
    """The one of this kind."""
    return next(each for each in listeners if isinstance(each, kind))
