"""The process that an engine runs in: a fork's child has a copy of its objects, and no engine."""

import os

from hotreload.errors import BadRequest


class Home:
    """The process that made this object."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_here(self) -> bool:
        """True in that process."""
        return os.getpid() == self._process

    def check(self) -> None:
        """BadRequest in a fork's child."""
        if not self.is_here:
            raise BadRequest(
                f"this engine runs in process {self._process}, of which this one ({os.getpid()}) "
                "is a fork: ask it there, and start processes with multiprocessing's 'spawn'"
            )
