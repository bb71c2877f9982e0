"""Rules and sockets as the settings say; the rest of this package reads no settings."""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from socket import AF_UNIX, socket

from hotreload.errors import AddressTaken, ConfigError
from hotreload.server.app import AppRules
from hotreload.server.http.keys import ApiKeys, Webhook, key_check
from hotreload.server.http.senders import overflow_id
from hotreload.server.http.server_sockets import (
    bind_tcp,
    bind_unix,
    group_id,
    refuse_clients,
    systemd_sockets,
)
from hotreload.server.key_limits import KeyLimits
from hotreload.server.sglang.answers import ServedModel
from hotreload.settings.credentials import ADMIN_KEYS, KEYS, read_secret
from hotreload.settings.sections import ServerSettings, Settings

log = logging.getLogger("hotreload")

OVERFLOW_GROUP = (
    "set [server] admin_group to another group: this one stands for all groups that this user "
    "namespace does not know, and therefore gives no rights"
)
OVERFLOW_USER = (
    "run hotreload as a user of its own: this uid stands for all users that this user namespace "
    "does not know, and therefore only root and [server] admin_group may administrate"
)


def app_rules(
    settings: Settings,
    wake: Callable[[str], None],
    keys: Mapping[str, ApiKeys],
    key_limits: KeyLimits,
) -> AppRules:
    """Return the rules of the daemon's app. ConfigError if a secret cannot be read.

    `wake` makes the source look. `keys` are the valid keys, by the setting that names their file.
    """
    file = settings.source.webhook
    return replace(
        worker_rules(settings, keys),
        admin_keys=keys.get(ADMIN_KEYS),
        key_limits=key_limits,
        admin_group=admin_group(settings.server),
        webhook=Webhook(read_secret(file, "[source] webhook"), wake) if file is not None else None,
        replay=settings.reload.on_drain_timeout == "replay",
    )


def worker_rules(settings: Settings, keys: Mapping[str, ApiKeys]) -> AppRules:
    """Return the rules of a worker's app."""
    server = settings.server
    folder, source = settings.engine.model, settings.source
    path = str(folder.absolute()) if folder else source.repo or settings.model_name
    return AppRules(
        model=ServedModel(settings.model_name, path),
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
