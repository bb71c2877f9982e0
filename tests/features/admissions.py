"""Finds the admissions of an entrance."""

from typing import Any

from hotreload.core.admission import Admission
from hotreload.core.entrance import Entrance


def admission_of[A: Admission](entrance: Entrance[Any], kind: type[A]) -> A:
    """The one of this kind."""
    return next(each for each in entrance.admissions if isinstance(each, kind))
