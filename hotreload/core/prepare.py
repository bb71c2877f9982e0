"""The half of an attempt that needs no engine and no gate: fetch a revision and check it."""

from collections.abc import Awaitable, Callable
from pathlib import Path

from hotreload.core.course import Course, StillWanted
from hotreload.core.rules import Rules
from hotreload.threads import wait_for_left_behind
from hotreload.types import Checkpoint, Phase, Revision

Fetch = Callable[[Revision], Awaitable[Path]]
"""Bring the files of a revision to this machine, and say where they lie."""
Validate = Callable[[Revision, Path], Awaitable[Checkpoint]]
"""Run every check that needs no engine on the files in that folder."""


class Prepare:
    """Turns a revision into a checked checkpoint; done once, however many engines there are."""

    def __init__(
        self, course: Course, wanted: StillWanted, *, fetch: Fetch, validate: Validate, rules: Rules
    ) -> None:
        self._course = course
        self._wanted = wanted
        self._fetch = fetch
        self._validate = validate
        self._rules = rules

    async def run(self) -> Checkpoint:
        """Fetch the revision and check it, or raise why not."""
        revision, rules = self._course.revision, self._rules
        async with self._course.phase(Phase.FETCHING, rules.fetch_timeout, "fetch_timeout"):
            path = await self._wanted.during(self._fetched())
        async with self._course.phase(Phase.VALIDATING, rules.validate_timeout, "validate_timeout"):
            checkpoint = await self._wanted.during(self._validate(revision, path))
        self._course.checkpoint = checkpoint
        return checkpoint

    async def _fetched(self) -> Path:
        await wait_for_left_behind()
        return await self._fetch(self._course.revision)
