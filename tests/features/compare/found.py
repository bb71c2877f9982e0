"""Finds what hears clients' requests in a daemon."""

from hotreload.daemon import Daemon
from hotreload.features.compare.replay import RequestRecorder
from tests.features.admissions import listener_of


def hearing_of(daemon: Daemon) -> RequestRecorder:
    """It is one of those that listen."""
    return listener_of(daemon.features.listeners, RequestRecorder)
