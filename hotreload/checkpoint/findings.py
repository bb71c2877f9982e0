"""Findings: faults of a checkpoint, in words that a person can act on; and how files are read.

Names come from files that are not trusted: they are shown escaped and cut.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hotreload.checkpoint.file_reader import (
    OURS,
    Changed,
    NotRegular,
    OpenFile,
    open_file,
    other_than_regular,
)
from hotreload.errors import (
    CheckpointChanged,
    CheckpointCorrupt,
    CheckpointIncompatible,
    HotReloadError,
    NotEnoughMemory,
    cut,
)
from hotreload.figures import size as size_words

_LONGEST_NAME = 160
SHOWN_OF_A_KIND = 10
"""The most findings of a kind that a log line or a status shows."""
KEPT_OF_A_KIND = 100
"""The most findings of a kind that are held in memory."""

MOST_TELLING_FIRST = (
    "changed",
    "io",
    "unsafe_path",
    "duplicate",
    "index",
    "truncated",
    "bad_header",
    "shape",
    "format",
    "missing",
    "dtype",
    "config_mismatch",
    "tokenizer_mismatch",
    "extra",
    "nonfinite",
    "zeros",
)
"""A refusal gives the earliest of these as its reason: the later ones often follow from it."""

INCOMPATIBLE = frozenset(
    {"shape", "format", "missing", "dtype", "config_mismatch", "tokenizer_mismatch", "extra"}
)
"""Codes of sound files that do not fit; all others say that the files are damaged."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that keeps a checkpoint from being loaded."""

    code: str
    message: str
    file: str | None = None
    tensor: str | None = None
    expected: str | None = None
    got: str | None = None
    count: int = 1
    """The number of findings that this one stands for."""


class Unfit(Exception):
    """Ends the reading of one file; the finding says why.

    `unfinished` marks what a file still being written looks like too.
    """

    def __init__(self, finding: Finding, *, unfinished: bool = False) -> None:
        super().__init__(finding.message)
        self.finding = finding
        self.unfinished = unfinished


def shown_name(name: str) -> str:
    """Return a file's name fit to print: escapes and line breaks never reach a terminal."""
    shown = cut(name, _LONGEST_NAME)
    return shown if shown.isprintable() else repr(shown)


def quote(tensor: str) -> str:
    """Put a tensor's name in quotes, escaped and cut."""
    return repr(cut(tensor, _LONGEST_NAME))


def most_telling(findings: Sequence[Finding]) -> Finding:
    """Choose the finding that names the reason best; the first of its kind."""
    return min(findings, key=lambda finding: MOST_TELLING_FIRST.index(finding.code))


class Findings:
    """Collects findings: keeps `most` of each kind, and counts the rest.

    So no checkpoint can fill our memory, whatever is wrong with it.
    """

    def __init__(self, most: int = KEPT_OF_A_KIND) -> None:
        self._most = most
        self._kept: dict[str, list[Finding]] = {}
        self._more: Counter[str] = Counter()

    def add(self, *found: Finding) -> None:
        """Take in findings; one that stands for many is counted as many."""
        for finding in found:
            kept = self._kept.setdefault(finding.code, [])
            if finding.count == 1 and len(kept) < self._most:
                kept.append(finding)
            else:
                self._more[finding.code] += finding.count

    def all(self) -> tuple[Finding, ...]:
        """Return the kept findings, by kind; the last of a kind stands for those not kept."""
        every = list[Finding]()
        for code, kept in self._kept.items():
            every += kept
            if count := self._more[code]:
                words = f"and {count} more findings of kind {code}"
                every.append(Finding(code, words, count=count))
        return tuple(every)


def limit_findings(findings: Iterable[Finding], most: int = KEPT_OF_A_KIND) -> tuple[Finding, ...]:
    """Return the findings, but not too many of a kind."""
    collected = Findings(most)
    for finding in findings:
        collected.add(finding)
    return collected.all()


def total(findings: Iterable[Finding]) -> int:
    """Count the findings, with those that one of them stands for."""
    return sum(finding.count for finding in findings)


def error_of(finding: Finding, words: str = "", listing: Sequence[str] = ()) -> HotReloadError:
    """Make the error of this finding, in other words if there are any.

    Bytes that changed while they were read are not condemned: they may become good.
    """
    message = words or finding.message
    if finding.code == CheckpointChanged.code:
        return CheckpointChanged(message, findings=listing)
    kind = CheckpointIncompatible if finding.code in INCOMPATIBLE else CheckpointCorrupt
    return kind(message, code=finding.code, findings=listing)


def fault(findings: tuple[Finding, ...]) -> HotReloadError:
    """Make the error of these findings: the most telling one first, a few of each kind listed."""
    first = most_telling(findings)
    others = total(findings) - 1
    more = f" (and {others} more)" if others else ""
    shown = [each.message for each in limit_findings(findings, SHOWN_OF_A_KIND)]
    return error_of(first, first.message + more, shown)


# --- files that cannot be read, or have changed -----------------------------------------------

TRIES_OF_A_TOUCHED_FILE = 3
"""Tries at reading a file that is touched each time."""


def not_regular(name: str, status: os.stat_result) -> Finding | None:
    """Find why this cannot be a checkpoint's file, before anything opens it; else None."""
    kind = other_than_regular(status)
    return None if kind is None else _trap(name, kind)


def _trap(name: str, kind: str) -> Finding:
    words = f"{shown_name(name)}: is {kind}, a checkpoint holds regular files only"
    return Finding("unsafe_path", words, name, expected="a regular file", got=kind)


def changed_finding(name: str, what: str) -> Unfit:
    """Make the finding that a file changed while it was read."""
    return Unfit(Finding("changed", f"{shown_name(name)}: {what}", name))


def with_file[T](
    path: Path, name: str, work: Callable[[OpenFile], T], *, was_regular: bool = False
) -> T:
    """Do the work on the open file; Unfit when the file cannot be read, or changed meanwhile.

    The work is done again where the file was touched: perhaps no byte of it was. A trap has changed
    if the file `was_regular` when it was looked at; else it is unsafe.
    """
    try:
        for _ in range(TRIES_OF_A_TOUCHED_FILE - 1):
            with suppress(Changed):
                return _read_unchanged(path, name, work)
        return _read_unchanged(path, name, work)
    except NotRegular as trap:
        if was_regular:
            raise changed_finding(name, f"it is {trap} now") from trap
        raise Unfit(_trap(name, str(trap))) from trap
    except Changed as how:
        raise changed_finding(name, str(how)) from how
    except FileNotFoundError as gone:
        raise changed_finding(name, "it is not there any more") from gone
    except OSError as error:
        if error.errno in OURS:
            words = f"{shown_name(name)}: cannot be read now: {error.strerror}"
            raise NotEnoughMemory(words) from error
        words = f"{shown_name(name)}: cannot be read: {error.strerror}"
        raise Unfit(Finding("io", words, name)) from error


def _read_unchanged[T](path: Path, name: str, work: Callable[[OpenFile], T]) -> T:
    with open_file(path, name) as file:
        result = work(file)
        file.check_unchanged()
        return result


def too_large(name: str, size: int, limit: int) -> Finding:
    """Make the finding that a file is larger than such a file needs to be."""
    words = f"{shown_name(name)}: is {size_words(size)}, no more than {size_words(limit)} are read"
    return Finding("io", words, name)


def read_whole(path: Path, name: str, limit: int) -> bytes:
    """Read a small file whole; Unfit `io` if it is larger than such a file needs to be."""

    def work(file: OpenFile) -> bytes:
        if file.identity.size > limit:
            raise Unfit(too_large(name, file.identity.size, limit))
        return file.read(file.identity.size, 0)

    return with_file(path, name, work)
