"""Reads a checkpoint's files, and makes findings of those that cannot be read or have changed."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hotreload.checkpoint.file_reader import (
    OURS,
    Changed,
    NotRegular,
    OpenFile,
    open_file,
    other_than_regular,
)
from hotreload.checkpoint.findings import Finding, Unfit, shown_name
from hotreload.errors import NotEnoughMemory
from hotreload.figures import size as size_words

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
