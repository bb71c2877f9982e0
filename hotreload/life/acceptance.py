"""Checks all settings before a daemon uses them.

`serve`, `check-config` and a SIGHUP all check here: settings that one of them accepts, all accept.
Faults that only a start finds (a port that is taken, a folder that is missing) are left to
`doctor`.
"""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

from hotreload.engine.model_folder import context_of, tokens_of, why_unshared
from hotreload.engine.options import COMPILED
from hotreload.engine.versions import unknown_arguments
from hotreload.errors import ConfigError, SourceUnavailable
from hotreload.facts.names import LONGEST_SOCKET_PATH
from hotreload.life.start.model_files import KEPT_MODEL
from hotreload.server.http.server_sockets import TlsPair, group_id
from hotreload.setting import SettingsOfFeature
from hotreload.settings.credentials import (
    ADMIN_KEYS,
    KEYS,
    are_hidden,
    read_join_secret,
    read_keys,
    read_secret,
)
from hotreload.settings.given import GivenValue
from hotreload.settings.load import Loaded, load, missing_to_serve
from hotreload.settings.sections import Settings
from hotreload.settings.tables import HasSettings, values_of, with_values
from hotreload.threads import deadline, in_thread

log = logging.getLogger("hotreload.boot")

CHECK_SECONDS = 10.0
"""Seconds for reading the files that settings name; at a start the start waits for slow disks."""

SPECIAL_TOKENS = 8
"""The most tokens that a tokenizer adds to a text, to begin and to end it."""
OUR_FOLDERS = ("boot", "staging", "hub", COMPILED, KEPT_MODEL)
"""Folders that the daemon makes in the state folder, and clears."""


def read_settings(
    file: Path | None,
    sets: Sequence[str | GivenValue],
    environ: Mapping[str, str],
    features: Iterable[HasSettings],
) -> Loaded:
    """Read the settings; one ConfigError lists every fault in them."""
    loaded = load(file, sets, environ, features)
    check(loaded.settings)
    return replace(loaded, settings=with_files(loaded.settings))


def with_files(settings: Settings) -> Settings:
    """Return the settings with the contents of features' files; ConfigError if one is bad."""
    return with_values(
        settings, {name: table.with_files() for name, table in settings.of_features()}
    )


def check(settings: Settings) -> None:
    """Raise a ConfigError that lists all faults of the settings."""
    faults = [fault for refused in REFUSED for fault in refused(settings)]
    if faults:
        raise ConfigError.from_faults(faults)


async def check_at_start(settings: Settings) -> Settings:
    """Check the settings at a start, and return them with the contents of the files that they name.

    If a disk hangs, the check is logged as not done, and the start itself meets the fault.
    """
    name = "a check of the settings"
    try:
        async with deadline(CHECK_SECONDS, name, "are the disks there that they name?"):
            await in_thread(lambda cancel: check(settings), leave_as=name, is_read=False)
    except SourceUnavailable as late:
        log.warning("boot.settings_not_checked", extra={"why": str(late)})
    name = "a read of the files that settings name"
    return await in_thread(lambda cancel: with_files(settings), leave_as=name, is_read=False)


def _arguments(settings: Settings) -> Iterator[str]:
    for words in unknown_arguments(settings.engine.args):
        yield f"[engine.args] {words}"


def _places(settings: Settings) -> Iterator[str]:
    socket = settings.server.socket
    if len(os.fsencode(socket)) > LONGEST_SOCKET_PATH:
        yield f"[server] socket: {socket} is longer than {LONGEST_SOCKET_PATH} bytes"
    state = _plain(settings.state.directory)
    ours = [state / name for name in OUR_FOLDERS]
    read = {"[source] path": settings.source.path, "[engine] model": settings.engine.model}
    for name, path in read.items():
        if path is None:
            continue
        place = _plain(path)
        if name == "[source] path" and state.is_relative_to(place):
            why = "what the daemon writes would count as checkpoints"
            yield f"[state] directory: {state} lies in {name}: {why}; set another"
        if any(place.is_relative_to(each) for each in ours):
            why = "the daemon clears what it finds there"
            yield f"{name}: {place} lies in a folder of its own in [state] directory: {why}"


def _plain(path: Path) -> Path:
    """Return the path without dots; links are not followed: one may lead to a disk that hangs."""
    return Path(os.path.normpath(path))


def _groups(settings: Settings) -> Iterator[str]:
    server = settings.server
    for name, group in (("group", server.group), ("admin_group", server.admin_group)):
        if group is not None:
            yield from _fault_of(partial(group_id, group, f"[server] {name}"))


def _secrets(settings: Settings) -> Iterator[str]:
    if are_hidden():
        return  # of a check before a reload; the daemon reads them
    source, server = settings.source, settings.server
    for name, file in (("token_file", source.token_file), ("webhook", source.webhook)):
        if file is not None:
            yield from _fault_of(partial(read_secret, file, f"[source] {name}"))
    for name, keys in ((KEYS, server.api_keys_file), (ADMIN_KEYS, server.admin_keys_file)):
        if keys is not None:
            yield from _fault_of(partial(read_keys, keys, name))
    yield from _fault_of(partial(tls_pair, settings))
    if (join := settings.engine.join_secret_file) is not None:
        yield from _fault_of(partial(read_join_secret, join))


def tls_pair(settings: Settings) -> TlsPair | None:
    """Return the certificate and key of the TCP port; ConfigError if they are no pair."""
    cert, key = settings.server.tls_cert, settings.server.tls_key
    return TlsPair(cert, key) if cert and key else None


def _files(settings: Settings) -> Iterator[str]:
    arrays = (each for _, each in values_of(settings) if isinstance(each, tuple))
    repeated = (each for each in chain(*arrays) if isinstance(each, SettingsOfFeature))
    for table in chain((each for _, each in settings.of_features()), repeated):
        try:
            table.with_files()
        except ConfigError as fault:
            yield from fault.findings or (str(fault),)


def _fault_of(looked_up: Callable[[], object]) -> Iterator[str]:
    try:
        looked_up()
    except ConfigError as fault:
        yield str(fault)


def _model(settings: Settings) -> Iterator[str]:
    """Yield settings that the model's config.json rules out, where there is one."""
    engine = settings.engine
    if engine.model is not None and (why := why_unshared(engine.model, engine.tp, engine.args)):
        yield why
    yield from _probes(settings, context_of(engine.model, engine.args))


def _probes(settings: Settings, context: int | None) -> Iterator[str]:
    if context is None:
        return
    engine = settings.engine
    named = engine.args.get("tokenizer_path")
    folder = Path(named) if isinstance(named, str) else engine.model
    for number, probe in enumerate(settings.probe, 1):
        most, name = context - 1 - probe.max_new_tokens, f"[[probe]] number {number}"
        if most <= 0:
            words = f"{probe.max_new_tokens} tokens and a prompt do not fit in the context"
            yield f"{name} max_new_tokens: {words} of {context}"
        elif (tokens := _many_tokens(probe.prompt, most, folder)) is not None:
            words = f"{tokens} tokens and {probe.max_new_tokens} new ones do not fit in the context"
            yield f"{name} prompt: {words} of {context}"


def _many_tokens(prompt: str, most: int, tokenizer: Path | None) -> int | None:
    """Return the token count of a prompt if it is above `most`; None if not, or if unknown.

    No token is shorter than a byte: only for long prompts a tokenizer is read.
    """
    if tokenizer is None or len(prompt.encode()) + SPECIAL_TOKENS <= most:
        return None
    tokens = tokens_of(prompt, tokenizer)
    return tokens if tokens is not None and tokens > most else None


REFUSED: Sequence[Callable[[Settings], Iterator[str]]] = (
    missing_to_serve,
    _arguments,
    _places,
    _groups,
    _secrets,
    _files,
    _model,
)
"""Checks that yield faults in words. A fault of one setting alone is found by its own model."""
