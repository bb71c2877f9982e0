"""Makes the daemon's parts as the settings describe them; `daemon` joins them."""

import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import AF_UNIX, socket
from typing import Protocol

from hotreload.checks.files import Digests, ServingFile, content_id, survey
from hotreload.config import Settings
from hotreload.core.ledger import Ledger
from hotreload.core.ports import Source
from hotreload.core.reload import KeepPrevious, Rules
from hotreload.credentials import read_secret
from hotreload.errors import ConfigError, SourceUnavailable
from hotreload.events import Publish
from hotreload.observe.metrics import Metrics
from hotreload.observe.systemd import LONGEST_BOOT
from hotreload.server.activation import take_over
from hotreload.server.sockets import bind_tcp, bind_unix, turn_away
from hotreload.sources.directory import DirectorySource
from hotreload.sources.hub.token import usual_token
from hotreload.sources.huggingface import HuggingFaceSource
from hotreload.types import Revision

log = logging.getLogger("hotreload")


class RunningSource(Source, Protocol):
    """A source as the daemon runs it: it can be woken, and it ends."""

    def wake(self, cause: str) -> None:
        """Look now."""
        ...

    def content_of(self, revision: Revision) -> str:
        """The content id that the files of a revision must have to be it; for any thread."""
        ...

    async def close(self) -> None:
        """Stop looking."""
        ...


def checkpoint_roots(settings: Settings) -> list[Path]:
    """The only folders a checkpoint may come from."""
    source = settings.source
    cache = hub_cache(settings) if source.kind == "huggingface" else None
    named = (source.path, cache, settings.engine.model)
    return [folder for folder in named if folder is not None]


def hub_cache(settings: Settings) -> Path:
    """Where downloads from a hub go."""
    return settings.source.cache or settings.state.directory / "hub"


def model_name(settings: Settings) -> str:
    """What clients of /v1 call the model: as configured, else as its folder is called."""
    folder = settings.engine.model
    # The name alone: what it links to may hang, and may be another tomorrow.
    named = settings.server.model_name or (folder.absolute().name if folder else "")
    return re.sub(r"[^A-Za-z0-9_.:@/-]", "-", named) or "model"


def make_source(settings: Settings, publish: Publish, ledger: Ledger) -> RunningSource:
    """The kind of source that is configured."""
    return SOURCES[settings.source.kind](settings, publish, ledger)


def _folder(settings: Settings, publish: Publish, ledger: Ledger) -> DirectorySource:
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


def _hub(settings: Settings, publish: Publish, ledger: Ledger) -> HuggingFaceSource:
    source = settings.source
    assert source.repo is not None, "check_servable saw to it"
    model = settings.engine.model
    digests = Digests()
    return HuggingFaceSource(
        source.repo,
        revision=source.revision,
        poll=source.poll,
        allow=source.allow,
        endpoint=source.endpoint,
        cache=hub_cache(settings),
        token=token_of(source.token_file),
        content_of=lambda folder, cancel: content_id(survey(folder), Wanted(digests, cancel)),
        kept=lambda: ledger.worth_keeping,
        folders=[model] if model is not None else [],
        publish=publish,
    )


class Wanted(Digests):
    """Reads no further file once nobody waits for it: a long hash is no hung disk."""

    def __init__(self, digests: Digests, cancel: threading.Event) -> None:
        self._digests, self._cancel = digests, cancel

    def of(self, file: ServingFile) -> str:
        """The file's digest, as long as it is wanted."""
        if self._cancel.is_set():
            raise SourceUnavailable("what was hashed is not wanted any more", code="cancelled")
        return self._digests.of(file)


def token_of(file: Path | None) -> Callable[[], str | None]:
    """Reads the token anew each time: it may be renewed. A file that cannot be read now is told."""
    if file is None:
        return usual_token
    read = partial(read_secret, file, "[source] token_file")
    read()

    def read_again() -> str:
        try:
            return read()
        except ConfigError as gone:
            raise SourceUnavailable(str(gone), code="denied") from None

    return read_again


def webhook_secret(settings: Settings) -> str | None:
    """What a webhook must know, if there is one."""
    file = settings.source.webhook
    return read_secret(file, "[source] webhook") if file is not None else None


SOURCES: dict[str, Callable[[Settings, Publish, Ledger], RunningSource]] = {
    "directory": _folder,
    "huggingface": _hub,
}
"""One line a kind of source: how to make it."""


def longest_boot(settings: Settings) -> float:
    """How long systemd is asked for patience with a start; from a hub it may begin with a fetch."""
    is_far = settings.source.kind == "huggingface"
    return LONGEST_BOOT + (settings.reload.fetch_timeout if is_far else 0.0)


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


@dataclass(frozen=True, slots=True)
class Listening:
    """The sockets to serve on, and whether they outlive us because systemd holds them."""

    sockets: list[socket]
    are_lasting: bool


@contextmanager
def listening(settings: Settings, metrics: Metrics) -> Iterator[Listening]:
    """Take all addresses before anything slow begins: a taken one is a fault at the start.

    Those systemd passes to us stand in place of the ones that are configured.
    """
    server = settings.server
    with ExitStack() as stack:
        passed = take_over()
        sockets = [stack.enter_context(each) for each in passed]
        stack.enter_context(_turning_away(passed))
        _tell_of_other_path(sockets, server.socket)
        if not any(each.family == AF_UNIX for each in passed):
            sockets.append(bind_unix(server.socket, server.mode, server.group))
            stack.callback(sockets[-1].close)
        if server.tcp and all(each.family == AF_UNIX for each in passed):
            sockets.append(bind_tcp(server.tcp))
            stack.callback(sockets[-1].close)
        if settings.metrics.address:
            stack.callback(metrics.serve(settings.metrics.address).close)
        yield Listening(sockets, are_lasting=bool(passed))


@contextmanager
def _turning_away(passed: list[socket]) -> Iterator[None]:
    """What we cannot start with, the next of us cannot: nobody must wait in the socket for it."""
    try:
        yield
    except ConfigError as fault:
        turn_away(passed, fault)
        raise


def _tell_of_other_path(passed: list[socket], path: Path) -> None:
    """The command looks for the daemon where the settings say."""
    paths = [each.getsockname() for each in passed if each.family == AF_UNIX]
    if paths and str(path) not in paths:
        where = {"listens_on": paths, "setting": str(path)}
        log.warning("server.other_socket: make [server] socket what systemd says", extra=where)
