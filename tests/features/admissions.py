"""Finds a feature's admission or listener among all of them."""

from collections.abc import Iterable
from typing import Any

from hotreload.core.way_in.admission import Admission
from hotreload.core.way_in.entrance import Entrance


def admission_of[A: Admission](entrance: Entrance[Any], kind: type[A]) -> A:
    """The one of this kind."""
    return next(each for each in entrance.admissions if isinstance(each, kind))


def listener_of[L](listeners: Iterable[object], kind: type[L]) -> L:
    """The one of this kind."""
    return next(each for each in listeners if isinstance(each, kind))
