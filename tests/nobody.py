"""Looks at files as somebody without rights, also where the tests run as root."""

import concurrent.futures.thread  # noqa: F401  # asyncio does it late, when nobody may not
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOBODY = 65534


@contextmanager
def as_nobody(*needed: Path) -> Iterator[None]:
    """Without root's rights to the end of the block; the way to `needed` is opened before."""
    for folder in (parent for each in needed for parent in each.parents):
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    if os.geteuid() != 0:
        yield
        return
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
