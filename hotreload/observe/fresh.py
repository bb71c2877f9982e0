"""A page made once a second at most, on a thread of its own, however many ask for it."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

FRESH_SECONDS = 1.0


class Fresh:
    """Hands out the page that `render` made within the last second, or is making right now."""

    def __init__(
        self,
        render: Callable[[], bytes],
        *,
        seconds: float = FRESH_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._render = render
        self._seconds = seconds
        self._clock = clock
        # Not one of the loop's own threads: a swap needs those to save its state.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="metrics page")
        self._lock = threading.Lock()
        self._page: Future[bytes] | None = None
        self._began = 0.0

    def latest(self) -> Future[bytes]:
        """The page, for any thread; all callers share the future, so nobody may cancel it."""
        with self._lock:
            if self._page is None or self._is_stale(self._page):
                self._began = self._clock()
                self._page = self._thread.submit(self._render)
            return self._page

    def _is_stale(self, page: Future[bytes]) -> bool:
        if not page.done():
            return False
        is_old = self._clock() - self._began >= self._seconds
        return is_old or page.cancelled() or page.exception() is not None
