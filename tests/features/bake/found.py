"""Finds what judges by clients' answers in a daemon."""

from typing import Any

from hotreload.daemon import Daemon
from hotreload.features.bake.bakes import Bakes


def baking_of(daemon: Daemon) -> Bakes:
    """Its task knows it."""
    run: Any = daemon.features.tasks["bake"]
    baking = run.func.__self__
    assert isinstance(baking, Bakes)
    return baking
