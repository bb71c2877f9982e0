"""Builds the app and opens the sockets as the settings say; the rest of this package reads no
settings.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from socket import AF_UNIX, socket

from fastapi import FastAPI

from hotreload.core.operator import Operator
from hotreload.core.way_in.admission import Listener
from hotreload.errors import AddressTaken, ConfigError
from hotreload.events import Events
from hotreload.picture.status import Documents
from hotreload.server.app import create_app
from hotreload.server.feature_routes import FeatureRoutes
from hotreload.server.http.keys import ApiKeys, key_check
from hotreload.server.http.peers import overflow_id
from hotreload.server.http.server_sockets import (
    bind_tcp,
    bind_unix,
    group_id,
    refuse_clients,
    systemd_sockets,
)
from hotreload.server.http.shared_counters import SharedCounters
from hotreload.server.http.webhook import Webhook
from hotreload.server.model import Model
from hotreload.server.ports import Entrance, Metrics
from hotreload.server.sglang.answers import ServedModel
from hotreload.server.workers.app import create_worker_app
from hotreload.server_limits import Limits
from hotreload.settings.credentials import ADMIN_KEYS, KEYS, read_secret
from hotreload.settings.sections import ServerSettings, Settings
from hotreload.types import Generation

log = logging.getLogger("hotreload")

OVERFLOW_GROUP = (
    "set [server] admin_group to another group: this one stands for all groups that this user "
    "namespace does not know, and therefore gives no rights"
)
OVERFLOW_USER = (
    "run hotreload as a user of its own: this uid stands for all users that this user namespace "
    "does not know, and therefore only root and [server] admin_group may administrate"
)


def make_app[P](
    settings: Settings,
    *,
    entrance: Entrance[P],
    operator: Callable[[], Operator],
    documents: Documents,
    events: Events,
    metrics: Metrics,
    listeners: Sequence[Listener],
    routes: Sequence[FeatureRoutes],
    limits: Limits,
    wake: Callable[[str], None],
    counts: SharedCounters,
    keys: Mapping[str, ApiKeys],
) -> FastAPI:
    """Build the app; `wake` makes the source look. ConfigError if a secret cannot be read.

    `keys` are the valid keys, by the setting that names their file.
    """
    server = settings.server
    return create_app(
        entrance=entrance,
        operator=operator,
        documents=documents,
        events=events,
        metrics=metrics,
        listeners=listeners,
        routes=routes,
        limits=limits,
        admin_group=admin_group(server),
        replay=settings.reload.on_drain_timeout == "replay",
        webhook=_webhook(settings.source.webhook, wake),
        model=_served_model(settings),
        hosts=server.hosts,
        origins=server.cors_origins,
        keys=keys.get(KEYS),
        admin_keys=keys.get(ADMIN_KEYS),
        access_log=server.access_log,
        counts=counts,
    )


def make_worker_app(
    settings: Settings,
    *,
    model: Model,
    metrics: Metrics,
    limits: Limits,
    counts: SharedCounters,
    live: Callable[[], Generation | None],
    keys: Mapping[str, ApiKeys],
) -> FastAPI:
    """Build the app of a worker, which serves this model; `keys` are as in `make_app`."""
    server = settings.server
    return create_worker_app(
        model=model,
        name=settings.model_name,
        metrics=metrics,
        limits=limits,
        counts=counts,
        live=live,
        check_key=key_check(keys.get(KEYS), keys.get(ADMIN_KEYS)),
        hosts=server.hosts,
        origins=server.cors_origins,
        access_log=server.access_log,
    )


def admin_group(server: ServerSettings) -> int | None:
    """Return the number of the group that may use the admin routes; None if none is configured."""
    name = server.admin_group
    group = group_id(name, "[server] admin_group") if name else None
    if group == overflow_id("gid"):
        log.warning("admin.nobodys_group", extra={"admin_group": name, "todo": OVERFLOW_GROUP})
    if os.geteuid() == overflow_id("uid"):
        log.warning("admin.nobodys_user", extra={"uid": os.geteuid(), "todo": OVERFLOW_USER})
    return group


def _served_model(settings: Settings) -> ServedModel:
    """Return the model's names: its name to clients, and the path of its folder or its repo."""
    folder, source = settings.engine.model, settings.source
    path = str(folder.absolute()) if folder else source.repo or settings.model_name
    return ServedModel(settings.model_name, path)


def _webhook(file: Path | None, wake: Callable[[str], None]) -> Webhook | None:
    return Webhook(read_secret(file, "[source] webhook"), wake) if file is not None else None


@contextmanager
def hold_systemd_sockets() -> Iterator[Sequence[socket]]:
    """Yield the sockets that systemd passes to this process, and close them at the end.

    A ConfigError in the block is sent as a 503 to all clients that wait in the sockets: the next
    start would fail on the same setting. If an address is taken the clients stay: systemd tries
    again.
    """
    with ExitStack() as stack:
        passed = [stack.enter_context(each) for each in systemd_sockets()]
        try:
            yield passed
        except AddressTaken:
            raise
        except ConfigError as fault:
            refuse_clients(passed, fault)
            raise


@contextmanager
def bind_sockets(server: ServerSettings, passed: Sequence[socket]) -> Iterator[list[socket]]:
    """Bind all configured addresses before the slow part of a start; raise if one is taken.

    Sockets that systemd passed replace the configured ones.
    """
    with ExitStack() as stack:
        sockets = [*passed]
        _warn_of_other_path(passed, server.socket)
        if not any(each.family == AF_UNIX for each in passed):
            sockets.append(stack.enter_context(bind_unix(server.socket, server.mode, server.group)))
        if server.tcp and all(each.family == AF_UNIX for each in passed):
            sockets.append(stack.enter_context(bind_tcp(server.tcp)))
        yield sockets


def _warn_of_other_path(passed: Sequence[socket], path: Path) -> None:
    """Warn if systemd listens on another path than the commands will try."""
    paths = [each.getsockname() for each in passed if each.family == AF_UNIX]
    if paths and str(path) not in paths:
        todo = "set [server] socket to the path that systemd listens on"
        where = {"listens_on": paths, "setting": str(path), "todo": todo}
        log.warning("server.other_socket", extra=where)
