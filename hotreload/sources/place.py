"""A place: a folder that may hold a checkpoint, as a look at a tree shows it; and rules for places.

A place is followed from look to look, and places have an order: by step, by time or by name. Its
name says the step it holds, and whether its writer calls it unfinished.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from hotreload.checkpoint.known_names import as_one_line
from hotreload.checkpoint.survey import Survey
from hotreload.core.ledger import PastGeneration
from hotreload.errors import BadRequest, NothingOfThatName, SourceUnavailable
from hotreload.sources.settings import FolderSettings, Ordering
from hotreload.types import Reason, Revision

_LONG_AGO = 60.0  # no network file system's clock is expected to be off by more
_WEIGHTS = (".safetensors", ".safetensors.index.json")

StepNumber = tuple[int, int]
"""The epoch (0 where no name gives one beside the step) and the step; later ones are greater."""


class Entry(NamedTuple):
    """The file or folder of one name in a folder; equal entries mean that it was not touched."""

    name: str
    device: int = 0
    inode: int = 0
    size: int = 0
    mtime: int = 0
    ctime: int = 0


class Oddity(NamedTuple):
    """The reason why a folder that was probably meant as a checkpoint is passed over."""

    code: str
    words: str
    telling: tuple[str, ...] = ()
    """The names of the files that make the folder odd."""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder that may hold a checkpoint, as one look at the tree shows it."""

    path: Path
    folder: Path  # links resolved: where `latest` leads now
    entries: tuple[Entry, ...]
    root: Path
    oddity: Oddity | None = None

    @property
    def label(self) -> str:
        """The place's name for people: its folder's."""
        return self.folder.name

    @property
    def name(self) -> str:
        """Its path below the root, fit for a line of the log."""
        return as_one_line("/".join(self._parts(self.path)))

    @property
    def weights(self) -> tuple[Entry, ...]:
        """Its weight files, without fields that a remount, chmod or backup may change."""
        named = (entry for entry in self.entries if entry.name.endswith(_WEIGHTS))
        held = (entry for entry in named if not is_unfinished(entry.name))
        return tuple(entry._replace(device=0, ctime=0) for entry in held)

    @property
    def is_outside(self) -> bool:
        """True if a link led out of the root to it."""
        return below_root(self.folder, self.root) is None

    @property
    def step(self) -> StepNumber | None:
        """The step that its path names; of a link that leads out of the root, the link's own path.

        The root's name does not count: it is the name of a run.
        """
        if self.folder == self.root:
            return None
        return step_of(self._parts(self.path if self.is_outside else self.folder))

    @property
    def time(self) -> int:
        """When it was last written to, by the times of its files."""
        # A copy may carry any mtime along, one in the future too; ctime is this machine's own.
        return max((min(entry.mtime, entry.ctime) for entry in self.entries), default=0)

    def holds(self, name: str) -> bool:
        """Return whether there is an entry of this name."""
        return any(entry.name == name for entry in self.entries)

    def last_change(self, but: str | None = None) -> int:
        """When any entry other than `but` was last touched."""
        return max((entry.ctime for entry in self.entries if entry.name != but), default=0)

    def _parts(self, path: Path) -> tuple[str, ...]:
        inside = below_root(path, self.root)
        return tuple(inside.split("/")) if inside else (path.name,)


def below_root(path: Path, root: Path) -> str | None:
    """Return the path below a root, empty for the root itself; None if it lies elsewhere.

    Both are absolute and plain. pathlib would take a second for some thousand paths.
    """
    whole, above = str(path), str(root).rstrip("/")
    if whole == str(root):
        return ""
    return whole[len(above) + 1 :] if whole.startswith(f"{above}/") else None


@dataclass(slots=True)
class FollowedPlace:
    """One place, and what the looks so far found; times are those of our own clock."""

    place: Place
    since: float
    """The time when a look last saw a change in the files that would be loaded."""
    touched: float
    """The time when a look last saw a change of anything in the folder."""
    survey: Survey | None = None
    claimed: bool = False
    """The folder came by a rename, which says that its writer has finished it."""
    has_changed: bool = False
    """A look saw it change. From then on its files' own times, which may be wrong, do not count."""
    revision: Revision | None = None
    oddity: Oddity | None = None
    """The reason why the source cannot wish for it, as far as that is known."""

    @property
    def reason(self) -> Reason:
        """The reason why it is passed over, in a sentence that names the folder; only if odd."""
        assert self.oddity is not None
        return Reason(self.oddity.code, f"{self.place.name} {self.oddity.words}")

    @property
    def is_incomplete(self) -> bool:
        """True while some file of the checkpoint is still missing."""
        return self.survey is not None and self.survey.waiting_for is not None

    def is_vouched_for(self, marker: str | None) -> bool:
        """Say whether its writer has called it finished, so that nothing need settle.

        A rename vouches for what the folder held on arrival, a marker for what was there before
        it (a plain copy of a finished folder may well bring the marker first).
        """
        times = (entry.ctime for entry in self.place.entries if entry.name == marker)
        marked = next(times, None)
        return self.claimed or (marked is not None and marked >= self.place.last_change(but=marker))

    def begin_anew(self, now: float) -> None:
        """Have the quiet time begin again: perhaps its writer is not finished."""
        self.since, self.claimed, self.revision = now, False, None

    def is_old(self, span: float, wall: float) -> bool:
        """Say whether the folder's own times show that it stood still for `span`."""
        age = wall - self.place.last_change() / 1e9
        return not self.has_changed and age >= span + _LONG_AGO


# --- which of two is the newer one ---------------------------------------------------------

SortKey = tuple[tuple[int, int], int, str]
"""A place's step, time and name; constant where the order ignores one of them."""

_NO_STEP = (-1, -1)


def sort_key(order: Ordering, place: Place) -> SortKey:
    """Make what places are sorted by, the oldest first; those without a step are the oldest."""
    step = (place.step or _NO_STEP) if order == "step" else _NO_STEP
    return step, 0 if order == "name" else place.time, place.label


def is_newer(order: Ordering, place: Place, than: Place) -> bool:
    """Say whether a place may be meant as the newer one; without a step it goes by its time."""
    if order == "step" and place.step is not None:
        return than.step is None or place.step > than.step
    return place.label > than.label if order == "name" else place.time > than.time


def lacks_a_step(order: Ordering, place: Place, best: Place) -> bool:
    """Say whether a place is not the newest only since its name says no step."""
    is_below = sort_key(order, place) < sort_key(order, best)
    return place.step is None and is_below and is_newer(order, place, best)


def comes_after(order: Ordering, folder: Path, written_at: float, than: PastGeneration) -> bool:
    """Return whether a folder's checkpoint is newer than one that was live, or may be.

    By time it is newer if its files were written since the other went live.
    """
    if order == "time":
        return written_at > than.since
    if order == "name":
        return folder.name > Path(than.path).name
    step, before = step_of(folder.parts), step_of(Path(than.path).parts)
    return step is None or before is None or step > before


@dataclass(frozen=True)
class FolderOptions(FolderSettings):
    """Rules for a watched folder: which ones below it are checkpoints, and when one is complete."""

    depth: int = 3
    roots: Sequence[Path] = ()
    """Folders in which checkpoints may lie, beside the watched one."""
    reads_once: Callable[[], bool] = lambda: False
    """Say if staging may be the first to read the bytes of a finished folder."""


# --- folders that an order may name though the source does not follow them ----------------------

MORE_ROOTS = "[server] update_roots allows more"


def folder_below(roots: Iterable[Path], folder: Path, instead: str) -> Path:
    """Return the folder that is meant, links resolved.

    BadRequest, which says what to do `instead`, when it lies below none of these.
    """
    with explain_exchange(str(folder)):
        meant = Path(os.path.realpath(folder))
        if not any(meant.is_relative_to(os.path.realpath(root)) for root in roots):
            raise BadRequest(f"{folder}: {instead}; {MORE_ROOTS}")
        if not meant.is_dir():
            raise NothingOfThatName(f"{folder}: no such folder")
        return meant


@contextmanager
def explain_exchange(folder: str) -> Iterator[None]:
    """Raise SourceUnavailable where a folder becomes a link, or a link a folder, meanwhile."""
    try:
        yield
    except OSError as fault:
        raise SourceUnavailable(f"{folder}: cannot be looked at: {fault.strerror}") from fault


# --- what a folder's name says ----------------------------------------------------------------

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
