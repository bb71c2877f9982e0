"""What the ranks of one engine can all write to and read: all that agreeing needs of the world."""

from typing import Protocol


class Store(Protocol):
    """Keys and their values, the same for all ranks; every call blocks, and any thread may call.

    EngineLost when the store is gone: it lives in rank 0, and the others end with it.
    """

    def put(self, key: str, value: str) -> None:
        """Have the key hold this value; whoever waits for it gets it."""
        ...

    def get(self, key: str, within: float) -> str | None:
        """The value of the key, waited for so many seconds; None when it has none by then."""
        ...

    def forget(self, key: str) -> None:
        """Let go of the key, and of every key that begins with it and a slash."""
        ...
