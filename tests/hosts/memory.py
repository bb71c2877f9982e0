"""A store of ranks that are all in this process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from hotreload.hosts.upstream.ranks import Store


class MemoryStore(Store):
    """The same in the memory of one process."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def put(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def get(self, key: str, within: float) -> str | None:
        with self._changed:
            self._changed.wait_for(lambda: key in self._values, within)
            return self._values.get(key)

    def forget(self, key: str) -> None:
        with self._changed:
            below = [each for each in self._values if each.startswith(f"{key}/")]
            for each in (key, *below):
                self._values.pop(each, None)


@contextmanager
def in_memory() -> Iterator[list[MemoryStore]]:
    """The store as each of two ranks sees it."""
    store = MemoryStore()
    yield [store, store]
