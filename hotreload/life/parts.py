"""Makes the daemon's parts as the settings describe them; `daemon` joins them."""

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from socket import AF_UNIX, socket

from hotreload.checkpoint.digests import Digests
from hotreload.core.entrance import Entrance
from hotreload.core.gate import Gate
from hotreload.core.ledger import Ledger
from hotreload.core.ports import Engine, Source
from hotreload.core.rules import KeepPrevious, Rules
from hotreload.errors import ConfigError
from hotreload.events import ModeChosen, Publish
from hotreload.hosts.upstream.joining import Ranks
from hotreload.life.running import RunningEngine
from hotreload.life.secret_files import KEYS, TOKEN, Renewed
from hotreload.life.state_lock import StateFolder
from hotreload.observe.metrics import Metrics
from hotreload.observe.metrics_page import Page
from hotreload.observe.systemd import LONGEST_BOOT
from hotreload.picture.picture import Picture
from hotreload.server.keys import ApiKeys
from hotreload.server.listening import bind_tcp, bind_unix, group_id, take_over, turn_away
from hotreload.server.peers import overflow_id
from hotreload.server.webhook import Webhook
from hotreload.settings.credentials import read_join_secret, read_keys, read_secret
from hotreload.settings.load import Settings
from hotreload.sources.directory import DirectorySource
from hotreload.sources.hub.client import usual_token
from hotreload.sources.huggingface import HuggingFaceSource
from hotreload.sources.options import FolderOptions, HubOptions
from hotreload.types import Mode

log = logging.getLogger("hotreload")

NOBODYS_GROUP = (
    "set [server] admin_group to another group: whoever is unknown in this user namespace has this "
    "one, so it lets nobody administrate"
)
NOBODYS_USER = (
    "run hotreload as a user of its own: whoever is unknown in this user namespace has this uid, "
    "so only root and [server] admin_group may administrate"
)
NAMING_SECONDS = 5.0
"""So much later than other ranks an attempt itself is out of time: it is to name who was late."""


def checkpoint_roots(settings: Settings) -> list[Path]:
    """The only folders a checkpoint may come from."""
    source = settings.source
    cache = settings.hub_cache if source.kind == "huggingface" else None
    named = (source.path, cache, settings.engine.model)
    return [folder for folder in named if folder is not None]


def model_name(settings: Settings) -> str:
    """The name of the model for clients of /v1: the configured one, else its folder's name."""
    folder = settings.engine.model
    # Not resolved: reading the link may hang, and its target may change.
    named = settings.server.model_name or (folder.absolute().name if folder else "")
    return re.sub(r"[^A-Za-z0-9_.:@/-]", "-", named) or "model"


def make_source(settings: Settings, publish: Publish, ledger: Ledger, digests: Digests) -> Source:
    """The kind of source that is configured."""
    return SOURCES[settings.source.kind](settings, publish, ledger, digests)


def _folder(
    settings: Settings, publish: Publish, ledger: Ledger, digests: Digests
) -> DirectorySource:
    source = settings.source
    assert source.path is not None, "it was found missing before"
    options = FolderOptions(
        pattern=source.pattern,
        marker=source.marker,
        settle=source.settle,
        rescan=source.rescan,
        order=source.order,
        patience=source.patience,
        roots=checkpoint_roots(settings),
    )
    return DirectorySource(
        source.path,
        options,
        digests=digests,
        publish=publish,
        is_refused=lambda id: id in ledger.refused,
        generations=lambda: tuple(ledger.generations),
    )


def _hub(
    settings: Settings, publish: Publish, ledger: Ledger, digests: Digests
) -> HuggingFaceSource:
    source = settings.source
    assert source.repo is not None, "it was found missing before"
    model = settings.engine.model
    options = HubOptions(
        revision=source.revision,
        poll=source.poll,
        allow=source.allow,
        endpoint=source.endpoint,
        token=token_of(source.token_file),
    )
    return HuggingFaceSource(
        source.repo,
        options,
        cache=settings.hub_cache,
        digests=digests,
        kept=lambda: ledger.worth_keeping,
        folders=[model] if model is not None else [],
        publish=publish,
    )


def token_of(file: Path | None) -> Callable[[], str | None]:
    """Reads the token anew each time: it may be renewed."""
    return usual_token if file is None else Renewed(partial(read_secret, file, TOKEN))


def make_entrance(settings: Settings, publish: Publish) -> Entrance[RunningEngine]:
    """The way in for every request; each of its gates is closed until weights are live there."""
    asked = settings.reload
    hold = asked.while_closed == "hold"
    gate = partial(Gate[RunningEngine], publish=publish, hold_arrivals=hold)
    return Entrance(
        lambda index: gate(replica=index, max_held=asked.max_held), settings.engine.replicas
    )


def ranks_of(settings: Settings) -> Ranks | None:
    """Which of the processes of one engine this is; None where there is one alone."""
    engine = settings.engine
    if engine.nnodes == 1:
        return None
    assert engine.dist_init_addr is not None, "reading the settings saw to it"
    return Ranks(engine.node_rank, engine.nnodes, engine.dist_init_addr)


def trusting_ranks_of(settings: Settings) -> Ranks | None:
    """The same, with the secret by which they know each other; ConfigError if it is none."""
    ranks, file = ranks_of(settings), settings.engine.join_secret_file
    if ranks is None or file is None:
        return ranks
    return replace(ranks, secret=read_join_secret(file))


def make_metrics(settings: Settings, picture: Picture) -> Metrics:
    """What Prometheus reads."""
    asked = settings.metrics
    most = asked.max_leaves if asked.per_leaf else 0
    return Metrics(picture, max_leaves=most, expect_every=asked.expect_every)


def admin_group(settings: Settings) -> int | None:
    """The group whose members may change what is live, if any is configured."""
    name = settings.server.admin_group
    group = group_id(name, "[server] admin_group") if name else None
    if group == overflow_id("gid"):
        log.warning("admin.nobodys_group", extra={"admin_group": name, "todo": NOBODYS_GROUP})
    if os.geteuid() == overflow_id("uid"):
        log.warning("admin.nobodys_user", extra={"uid": os.geteuid(), "todo": NOBODYS_USER})
    return group


def make_webhook(settings: Settings, wake: Callable[[str], None]) -> Webhook | None:
    """What takes webhook calls, which must hold the configured secret; None without one."""
    file = settings.source.webhook
    return Webhook(read_secret(file, "[source] webhook"), wake) if file is not None else None


def api_keys(settings: Settings) -> ApiKeys | None:
    """The keys that clients over TCP must have, if any are configured."""
    file = settings.server.api_keys_file
    if file is None:
        return None
    return ApiKeys(partial(read_keys, file, KEYS))


SOURCES: dict[str, Callable[[Settings, Publish, Ledger, Digests], Source]] = {
    "directory": _folder,
    "huggingface": _hub,
}
"""One line a kind of source: how to make it."""


def longest_boot(settings: Settings) -> float:
    """How long systemd waits for a start; one from a hub may begin with a download."""
    is_far = settings.source.kind == "huggingface"
    return LONGEST_BOOT + (settings.reload.fetch_timeout if is_far else 0.0)


def to_stage(settings: Settings) -> float:
    """How long staging may take. On other hosts the checkpoint is fetched and checked in it."""
    reload = settings.reload
    if settings.engine.nnodes == 1:
        return reload.stage_timeout
    return reload.fetch_timeout + reload.validate_timeout + reload.stage_timeout


def make_rules(settings: Settings) -> Rules:
    """What the operator decided about attempts."""
    reload = settings.reload
    later = NAMING_SECONDS if settings.engine.nnodes > 1 else 0.0
    return Rules(
        fetch_timeout=reload.fetch_timeout,
        validate_timeout=reload.validate_timeout,
        stage_timeout=to_stage(settings) + later,
        drain_timeout=reload.drain_timeout,
        abort_on_drain_timeout=reload.on_drain_timeout != "postpone",
        sets=reload.sets,
        together=reload.rollout == "together",
        finish_timeout=reload.finish_timeout or settings.server.limits.request_seconds,
        longest_drain=settings.server.limits.request_seconds,
        probe_timeout=reload.probe_timeout + later,
        keep_previous=KeepPrevious(reload.keep_previous),
    )


def choose_mode(settings: Settings, engine: Engine) -> ModeChosen:
    """How weights are exchanged in this life: as the operator decided, if the engine can."""
    if Mode(settings.reload.mode) is Mode.DRAIN:
        return ModeChosen(Mode.DRAIN)
    why_not = engine.cannot_overlap
    return ModeChosen(Mode.DRAIN if why_not else Mode.OVERLAP, why_not)


@dataclass(frozen=True, slots=True)
class Listening:
    """The sockets to serve on, and whether they outlive us because systemd holds them."""

    sockets: list[socket]
    are_lasting: bool


@contextmanager
def listening(settings: Settings, metrics: Metrics, state: StateFolder) -> Iterator[Listening]:
    """Take all addresses, and the state folder, before anything slow begins.

    One that is taken is a fault at the start.

    Those systemd passes to us stand in place of the ones that are configured.
    """
    server = settings.server
    with ExitStack() as stack:
        passed = take_over()
        sockets = [stack.enter_context(each) for each in passed]
        stack.enter_context(_turning_away(passed))
        stack.enter_context(state.held(server.socket))
        _tell_of_other_path(sockets, server.socket)
        if not any(each.family == AF_UNIX for each in passed):
            sockets.append(bind_unix(server.socket, server.mode, server.group))
            stack.callback(sockets[-1].close)
        if server.tcp and all(each.family == AF_UNIX for each in passed):
            sockets.append(bind_tcp(server.tcp))
            stack.callback(sockets[-1].close)
        if settings.metrics.address:
            stack.callback(Page(settings.metrics.address, metrics.latest).close)
        yield Listening(sockets, are_lasting=bool(passed))


@contextmanager
def _turning_away(passed: list[socket]) -> Iterator[None]:
    """Refuse who waits in the socket: the next start would fail on the same setting."""
    try:
        yield
    except ConfigError as fault:
        turn_away(passed, fault)
        raise


def _tell_of_other_path(passed: list[socket], path: Path) -> None:
    """The command looks for the daemon where the settings say."""
    paths = [each.getsockname() for each in passed if each.family == AF_UNIX]
    if paths and str(path) not in paths:
        todo = "set [server] socket to the path that systemd listens on"
        where = {"listens_on": paths, "setting": str(path), "todo": todo}
        log.warning("server.other_socket", extra=where)
