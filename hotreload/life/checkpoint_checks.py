"""Runs every check on a checkpoint's files, against the model that the engine serves."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from hotreload.checkpoint.check import check_checkpoint
from hotreload.checkpoint.digests import Digests
from hotreload.checkpoint.fit import Policy
from hotreload.life.live_settings import LiveSettings
from hotreload.threads import in_thread
from hotreload.types import Checkpoint, Revision, Served


class CheckpointChecks:
    """The checks by which the core validates checkpoints, at a start and later."""

    def __init__(
        self,
        live_settings: LiveSettings,
        *,
        content_of: Callable[[Revision], str],
        roots: Sequence[Path],
        digests: Digests,
    ) -> None:
        """The settings in force apply; `content_of` returns the content id a revision must have."""
        self.served = Served({}, {}, {})
        """The model that each checkpoint must match, once a start has read it."""
        self._live_settings = live_settings
        self._content_of = content_of
        self._roots = roots
        self._digests = digests

    def serve(self, served: Served) -> None:
        """Check checkpoints against this model from now on."""
        self.served = served

    async def __call__(self, revision: Revision, path: Path) -> Checkpoint:
        """Check a checkpoint, in a thread that is left behind when a read hangs."""
        checks = self._live_settings.settings.checks
        run = partial(
            check_checkpoint,
            revision,
            path,
            served=self.served,
            policy=Policy(**asdict(checks)),
            root=self._roots,
            digests=self._digests,
        )

        def work(cancel: threading.Event) -> Checkpoint:
            return run(content_id=self._content_of(revision), cancel=cancel)

        return await in_thread(work, leave_as=f"a check of {revision}")
