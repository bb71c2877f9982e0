"""Notices that a folder which held checkpoints holds none any more: its mount may be gone.

To a look an unmounted folder is an empty one, in which no checkpoint has arrived yet.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from hotreload.core.ledger import PastGeneration
from hotreload.facts.mount_table import Mount, mount_of
from hotreload.sources.look import Look

EMPTIED_TODO = (
    "look at its mount, and mount it again or copy the checkpoints back; the next checkpoint ends "
    "this, too"
)


class EmptiedFolder:
    """The last contents of a folder. It reads disks, so a look calls it in its thread."""

    def __init__(self, path: Path, generations: Callable[[], Iterable[PastGeneration]]) -> None:
        """`generations` are those that went live, in earlier lives too."""
        self._path = path
        self._generations = generations
        self._held = ""
        """The checkpoints of the last look that found any, in words."""
        self._device = 0
        self._mount: Mount | None = None

    def judge(self, look: Look) -> str | None:
        """Return the trouble in words; None while there are checkpoints, or if none ever were."""
        if look.checkpoints:
            self._remember(look)
            return None
        held = self._held or self._lay_here()
        if not held:
            return None
        now = look.error or f"{self._path} holds no checkpoint now"
        return f"{now}; {held}{self._where()}"

    def _remember(self, look: Look) -> None:
        count = look.checkpoints
        self._held = f"it held {count} {'checkpoint' if count == 1 else 'checkpoints'}"
        if look.newest:
            self._held += f", {'' if count == 1 else 'the newest '}{look.newest}"
        device = os.stat(self._path).st_dev
        if device != self._device:
            self._device, self._mount = device, mount_of(self._path)

    def _lay_here(self) -> str:
        """Return in words which generations lay here; empty for none."""
        roots = (self._path, Path(os.path.realpath(self._path)))
        here = [
            each
            for each in self._generations()
            if each.path and any(Path(each.path).is_relative_to(root) for root in roots)
        ]
        if not here:
            return ""
        newest = f"generation {here[-1].number} ({here[-1].revision.label})"
        return f"{newest} lay there" + (f", and {len(here) - 1} before it" if here[1:] else "")

    def _where(self) -> str:
        now, before = mount_of(self._path), self._mount
        if before is None or before == now:
            return f"; it lies on {now}"
        return f"; it lay on {before}, and lies on {now} now"
