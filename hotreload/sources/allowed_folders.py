"""Folders that an order may name though the source does not follow them."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hotreload.errors import BadRequest, NothingOfThatName, SourceUnavailable

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
