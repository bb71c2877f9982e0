"""Notes a scheduler's load on its own thread, between two steps; any thread may read the notes.

Another thread would see batches and pools half changed, and requests in no lane or in two.
"""

import logging
from functools import partial
from typing import Any

from hotreload.engine.lanes.kinds import LaneLook, find_kind
from hotreload.engine.lanes.lanes import Lanes
from hotreload.types import EngineLoad

log = logging.getLogger("hotreload.engine")

NOTED_SECONDS = 0.25
"""Time for which a note is good enough; a turn of an idle loop comes once a second."""


class Load:
    """The newest note of one scheduler; without lanes where two generations cannot answer."""

    def __init__(self, scheduler: Any, lanes: Lanes | None) -> None:
        self.last = EngineLoad()
        self._scheduler = scheduler
        self._lanes = lanes
        self._kind = find_kind(scheduler)
        self._due = 0.0

    def note(self, now: float) -> None:
        """Look again when the last note is old; only the scheduler's own thread may ask."""
        if now < self._due:
            return
        self._due = now + NOTED_SECONDS
        try:
            self.last = self._look()
        except Exception:
            # An unknown version of the engine: it must not end because its load is unknown.
            self._due = float("inf")
            self.last = EngineLoad()
            log.warning("engine.load_unknown", exc_info=True)

    def _look(self) -> EngineLoad:
        lanes, scheduler = self._lanes, self._scheduler
        looks: list[LaneLook] = [partial(getattr, scheduler)]
        if lanes is not None:
            looks = [lane.look for lane in lanes.serving_lanes]
        return EngineLoad(
            sum(len(look("waiting_queue")) for look in looks),
            sum(map(self._count_running, looks)),
            *self._tokens(looks),
            int(scheduler.page_size),
        )

    def _count_running(self, look: LaneLook) -> int:
        if self._kind is None:
            return int(look("running_batch").batch_size())
        running, chunked = self._kind.list_running(look), self._kind.find_chunked(look)
        is_apart = chunked is not None and all(each is not chunked for each in running)
        return len(running) + is_apart

    def _tokens(self, looks: list[LaneLook]) -> tuple[int, int, int]:
        """Count the tokens that requests hold, that cached prefixes hold, and that are free."""
        scheduler = self._scheduler
        if getattr(scheduler, "is_hybrid", False):
            return 0, 0, 0
        if self._lanes is None:
            _, _, free, prefixes = scheduler._get_token_info()
        else:  # upstream's method counts only the lane that has its turn
            free = self._lanes.allocator.available_size()
            prefixes = sum(look("tree_cache").evictable_size() for look in looks)
        held = scheduler.max_total_num_tokens - free - prefixes
        return max(0, int(held)), int(prefixes), int(free)
