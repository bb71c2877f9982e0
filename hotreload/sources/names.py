"""Reads a folder's name: the step it holds, and whether its writer calls it unfinished."""

import re
from collections.abc import Iterable
from functools import lru_cache

StepNumber = tuple[int, int]
"""The epoch (0 where no name gives one beside the step) and the step; later ones are greater."""

_EDGE = r"(?<![a-z])"  # a digit may stand before the word: step900bf16
_END = r"(?![a-z0-9])"
_DTYPE = re.compile(
    rf"{_EDGE}(?:"
    r"(?:bf|fp|mxfp|nvfp|nf|tf|bfloat|float|u?int)[-_]?\d+|[fiu](?:4|8|16|32|64)"
    r"|e[2-5]m[0-3](?:fn|fnuz)?|w\d+a\d+|i?q\d(?:_[\dk](?:_[sml])?)?"
    rf"){_END}|(?<![a-z0-9])\d+[-_]?bits?{_END}"
)
"""bf16, float32, int4, f8, e4m3fn, w4a16, q4_k_m, 8bit."""
_SIZE = re.compile(
    rf"(?<![a-z0-9.])(?:\d+x|[ae])?\d+(?:[.p]\d+)?[bmtkg]{_END}|(?<![a-z0-9])g\d+{_END}"
)
"""7b, 0.6B, 8x7b, a3b, 350m, 32k, 128g."""
_DATE = re.compile(
    r"(?<!\d)(?:19|20)\d\d([-_.]?)(?:0[1-9]|1[0-2])\1(?:0[1-9]|[12]\d|3[01])"
    r"(?:[-_.t ]?[0-2]\d([-_.:h]?)[0-5]\d(?:\2[0-5]\d)?)?(?!\d)"
)
_STEP = re.compile(rf"(?:step|{_EDGE}(?:iteration|iter|update))s?[-_.= ]*(\d+)([km]?){_END}")
_CHECKPOINT = re.compile(rf"(?:checkpoint|ckpt)s?[-_.= ]*(\d+)(){_END}")
_EPOCH = re.compile(rf"{_EDGE}epochs?[-_.= ]*(\d+)(){_END}")
_TIMES = {"": 1, "k": 1000, "m": 1_000_000}
_UNFINISHED = re.compile(
    r"^\.|^tmp-|[-_.](?:orbax-checkpoint-)?tmp(?:[-_.][\w.-]*)?\Z|\.(?:part|partial|incomplete)\Z"
)


def step_of(parts: Iterable[str]) -> StepNumber | None:
    """Return the step that a path names, its parts given from the root down; else None.

    A number in the folder's own name counts first. Without one, the nearest folder above counts
    that names a step or is nothing but a number: `global_step_100/actor/huggingface`. An epoch
    counts wherever it stands.
    """
    own, *above = (_read(part) for part in reversed([*parts]))
    read = own if own.number is not None else next((each for each in above if each.says_step), own)
    if read.number is None:
        return None
    if read.is_epoch:
        return 0, read.number
    epochs = (each.epoch for each in (own, *above))
    return next((epoch for epoch in epochs if epoch is not None), 0), read.number


def says_step(name: str) -> bool:
    """Return whether the name is meant to name a step: `step_900`, `checkpoint-5`, `1000`."""
    return _read(name).says_step


def is_unfinished(name: str) -> bool:
    """Return whether the name marks unfinished files: it is hidden, temporary or partial."""
    return _UNFINISHED.search(name) is not None


class _Read:
    """The numbers in one name, without those that say a dtype, a size or a date."""

    def __init__(self, name: str) -> None:
        finished = _UNFINISHED.sub("", name.lower())
        plain = _DTYPE.sub(" ", finished)
        self.epoch = _last(_EPOCH, plain)
        said = [_last(words, plain) for words in (_STEP, _CHECKPOINT)]
        number = next((each for each in said if each is not None), None)
        self.is_epoch = number is None and self.epoch is not None
        self.says_step = number is not None or self.is_epoch or finished.isdecimal()
        self.number = self.epoch if self.is_epoch else number
        if self.number is None:
            self.number = _any_number(_SIZE.sub(" ", plain))


_read = lru_cache(maxsize=65536)(_Read)  # every look reads the same names again


def _last(words: re.Pattern[str], name: str) -> int | None:
    found = words.findall(name)
    return int(found[-1][0]) * _TIMES[found[-1][1]] if found else None


def _any_number(name: str) -> int | None:
    """Return the last number that is not part of a date; a date only if there is no other."""
    for text in (_DATE.sub(" ", name), re.sub(r"[^0-9 ]", "", name)):
        if numbers := re.findall(r"[0-9]+", text):
            return int(numbers[-1])
    return None
