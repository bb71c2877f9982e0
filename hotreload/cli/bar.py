"""Shows the progress of a download or a load: a bar on a terminal, else a line now and then."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from hotreload.errors import HotReloadError
from hotreload.picture.under_way import Pace
from hotreload.picture.words import plain, progress_text, share_of

ProgressFields = Mapping[str, Any] | None
"""The field `progress` of /status."""

REDRAW_SECONDS = 0.3
LINE_SECONDS = 3.0
"""Seconds between two lines; shorter work prints no line."""
BAR_WIDTH = 24
PHASE_WIDTH = 12
"""Columns by which a bar is narrower with a phase before it: it fits 80 columns in full."""


class Bar:
    """One line on stderr that is drawn again and again; it draws nothing without a terminal."""

    every = REDRAW_SECONDS

    def __init__(self) -> None:
        self.is_seen = sys.stderr.isatty()
        self._is_drawn = False

    def draw(self, progress: ProgressFields) -> None:
        """Draw the progress; None removes the bar."""
        if progress is None:
            self.close()
        elif self.is_seen:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            line = f"{_phase(progress)}  {bar_text(progress, BAR_WIDTH - PHASE_WIDTH)}"
            print(f"\r\033[K{line[: columns - 1]}", end="", file=sys.stderr)
            sys.stderr.flush()
            self._is_drawn = True

    def close(self) -> None:
        """Remove the bar: the next line stands alone."""
        if self._is_drawn:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self._is_drawn = False


class Lines:
    """A new line on stderr for each look, for logs."""

    every = LINE_SECONDS

    def draw(self, progress: ProgressFields) -> None:
        """Print the progress; nothing while its size is unknown."""
        if progress is not None:
            words = f"{share_of(progress):.0%}, {progress_text(progress)}"
            print(f"{_phase(progress)}: {words}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Do nothing: every line is complete."""


def bar_text(progress: Mapping[str, Any], width: int = BAR_WIDTH) -> str:
    """Return the progress of a download or a load, its speed, and the time left."""
    return f"{bar(share_of(progress), width)}  {progress_text(progress)}"


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """Return a bar whose filled part is this share."""
    full = "#" * int(share * width)
    return f"[{full:<{width}}] {share:4.0%}"


def _phase(progress: Mapping[str, Any]) -> str:
    return plain(progress.get("phase", "fetching"))  # an older daemon sends no phase


@contextmanager
def while_it_lasts(look: Callable[[], ProgressFields], wanted: bool) -> Iterator[None]:
    """Show the progress that `look` returns, in a second thread, until the block ends."""
    shown, over = Bar() if sys.stderr.isatty() else Lines(), threading.Event()

    def go_on() -> None:
        with suppress(HotReloadError):  # the caller reports that the daemon ended
            while not over.wait(shown.every):
                shown.draw(look())

    drawer = threading.Thread(target=go_on, daemon=True)
    if wanted:
        drawer.start()
    try:
        yield
    finally:
        over.set()
        if drawer.is_alive():
            drawer.join()
        shown.close()


def make_observer(bar: Bar) -> Callable[[Any], None]:
    """Return an observer that draws the progress of a download."""
    pace = Pace()

    def observe(event: Any) -> None:
        pace.observe(event)
        bar.draw(pace.fields())

    return observe
