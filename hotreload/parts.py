"""Makes the daemon's parts as the settings describe them; `daemon` joins them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from socket import socket
from typing import Protocol

from hotreload.checks.files import Digests, content_id, survey
from hotreload.config import Settings
from hotreload.core.ports import Source
from hotreload.core.reload import KeepPrevious, Rules
from hotreload.events import Publish
from hotreload.observe.metrics import Metrics
from hotreload.server.sockets import bind_tcp, bind_unix
from hotreload.sources.directory import DirectorySource


class RunningSource(Source, Protocol):
    """A source as the daemon runs it: it can be woken, and it ends."""

    def wake(self, cause: str) -> None:
        """Look now."""
        ...

    async def close(self) -> None:
        """Stop looking."""
        ...


def checkpoint_roots(settings: Settings) -> list[Path]:
    """The only folders a checkpoint may come from."""
    named = (settings.source.path, settings.engine.model)
    return [folder for folder in named if folder is not None]


def make_source(settings: Settings, publish: Publish) -> RunningSource:
    """The kind of source that is configured."""
    return SOURCES[settings.source.kind](settings, publish)


def _folder(settings: Settings, publish: Publish) -> DirectorySource:
    source = settings.source
    assert source.path is not None, "check_servable saw to it"
    roots = checkpoint_roots(settings)
    digests = Digests()
    return DirectorySource(
        path=source.path,
        pattern=source.pattern,
        marker=source.marker,
        settle=source.settle,
        rescan=source.rescan,
        order=source.order,
        patience=source.patience,
        roots=roots,
        survey=partial(survey, root=roots),
        identify=partial(content_id, digests=digests),
        publish=publish,
    )


SOURCES: dict[str, Callable[[Settings, Publish], RunningSource]] = {"directory": _folder}
"""One line a kind of source: how to make it."""


def make_rules(settings: Settings) -> Rules:
    """What the operator decided about attempts."""
    reload = settings.reload
    return Rules(
        fetch_timeout=reload.fetch_timeout,
        validate_timeout=reload.validate_timeout,
        stage_timeout=reload.stage_timeout,
        drain_timeout=reload.drain_timeout,
        abort_on_drain_timeout=reload.on_drain_timeout != "postpone",
        longest_drain=settings.server.limits.request_seconds,
        probe_timeout=reload.probe_timeout,
        keep_previous=KeepPrevious(reload.keep_previous),
    )


@contextmanager
def listening(settings: Settings, metrics: Metrics) -> Iterator[list[socket]]:
    """Take all addresses before anything slow begins: a taken one is a fault at the start."""
    server = settings.server
    with ExitStack() as stack:
        sockets = [bind_unix(server.socket, server.mode, server.group)]
        stack.callback(sockets[0].close)
        if server.tcp:
            sockets.append(bind_tcp(server.tcp))
            stack.callback(sockets[1].close)
        if settings.metrics.address:
            stack.callback(metrics.serve(settings.metrics.address).close)
        yield sockets
