"""Finds what hears clients' requests in a daemon."""

from hotreload.daemon import Daemon
from hotreload.features.compare.hearing import Hearing
from tests.features.admissions import listener_of


def hearing_of(daemon: Daemon) -> Hearing:
    """It is one of those that listen."""
    return listener_of(daemon.features.listeners, Hearing)
