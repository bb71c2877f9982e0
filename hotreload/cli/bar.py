"""A bar that shows how far a download is, where somebody looks at a terminal."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from hotreload.cli.show import duration
from hotreload.errors import HotReloadError

Progress = Mapping[str, Any] | None
"""The field `progress` of /status."""

LOOK_SECONDS = 0.3
WIDTH = 24


class Bar:
    """One line on stderr, drawn again and again; nothing at all without a terminal."""

    def __init__(self) -> None:
        self.is_seen = sys.stderr.isatty()
        self._is_drawn = False

    def draw(self, progress: Progress) -> None:
        """Show how far the download is; None takes the bar away."""
        if progress is None:
            self.close()
        elif self.is_seen:
            columns = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            print(f"\r\033[K{bar_text(progress)[: columns - 1]}", end="", file=sys.stderr)
            sys.stderr.flush()
            self._is_drawn = True

    def close(self) -> None:
        """Take the bar away, so that the next line stands by itself."""
        if self._is_drawn:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self._is_drawn = False


def bar_text(progress: Mapping[str, Any]) -> str:
    """Write how far a download is, how fast, and how long it still takes."""
    done, total = progress["done_bytes"], progress["total_bytes"]
    part = done / total if total else 0.0
    full = "#" * int(part * WIDTH)
    words = [f"[{full:<{WIDTH}}] {part:4.0%}", f"{_size(done)} of {_size(total)}"]
    if progress["bytes_per_second"]:
        words.append(f"{_size(progress['bytes_per_second'])}/s")
    if progress["seconds_left"] is not None:
        words.append(f"{duration(progress['seconds_left'])} left")
    return "  ".join(words)


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


@contextmanager
def while_it_lasts(look: Callable[[], Progress], wanted: bool) -> Iterator[None]:
    """Draw what `look` returns, in a thread beside the block, until the block ends."""
    bar, over = Bar(), threading.Event()

    def go_on() -> None:
        with suppress(HotReloadError):  # the caller tells that the daemon ended
            while not over.wait(LOOK_SECONDS):
                bar.draw(look())

    drawing = threading.Thread(target=go_on, daemon=True)
    if wanted and bar.is_seen:
        drawing.start()
    try:
        yield
    finally:
        over.set()
        if drawing.is_alive():
            drawing.join()
        bar.close()
