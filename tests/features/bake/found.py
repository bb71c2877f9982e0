"""Finds what judges by clients' answers in a daemon."""

from typing import Any

from hotreload.daemon import Daemon
from hotreload.features.bake.baking import Baking


def baking_of(daemon: Daemon) -> Baking:
    """Its task knows it."""
    run: Any = daemon.features.tasks["bake"]
    baking = run.func.__self__
    assert isinstance(baking, Baking)
    return baking
