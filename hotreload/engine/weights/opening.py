"""Opens what holds the bytes of a checked checkpoint: a file of its folder, or memory."""

import os
import threading
from pathlib import Path

from hotreload.checkpoint.reading import Opened, Readable
from hotreload.types import Checkpoint


def opened(checkpoint: Checkpoint, name: str, cancel: threading.Event) -> Readable:
    """The file of this name, to be read by one thread; whoever asks closes it."""
    if checkpoint.memory is not None:
        held: Readable = checkpoint.memory.open()
        return held
    return Opened(Path(os.path.realpath(checkpoint.path / name, strict=True)), name, cancel)
