"""Checks of `hotreload doctor`: folders and their file systems, secrets, and the clock."""

import ctypes
import os
import time
from contextlib import suppress
from pathlib import Path

from hotreload.checkpoint.fit import read_served_model
from hotreload.cli.ops import machine
from hotreload.cli.ops.doctor_checks.advice import Advice, Facts, find_existing, not_configured
from hotreload.engine.model_folder import unservable, why_unshared
from hotreload.errors import ConfigError, HotReloadError
from hotreload.facts import holders
from hotreload.facts.files import mount_of
from hotreload.life.acceptance import tls_pair
from hotreload.life.saved import state_lock
from hotreload.setting import is_local
from hotreload.sources.alarm import remote_file_system

FORGETFUL = ("tmpfs", "ramfs")
STA_UNSYNC, TIME_ERROR = 0x40, 5


def check_folders(facts: Facts) -> Advice:
    """Check that the daemon can read the model and the checkpoints, and write its state."""
    settings, user = facts.settings, facts.user
    readable = [p for p in (settings.engine.model, settings.source.path) if p is not None]
    for path in readable:
        if not path.is_dir():
            return Advice("fail", f"{path} is no folder", f"make it, or name another: {path}")
        closed = user.closed_at(path, os.R_OK | os.X_OK)
        if closed is not None:
            by = "" if closed == path else f": {closed} is closed"
            return Advice("fail", f"{user.name} may not read {path}{by}", f"chmod a+rX {closed}")
    state = settings.state.directory
    if state.exists() and not user.may(state, os.W_OK | os.X_OK):
        todo = f"chown {user.name} {state}"
        return Advice("fail", f"{user.name} may not write to {state}", todo)
    if not readable:
        return not_configured("no folder is to be read")
    return Advice("ok", f"{user.name} may read {' and '.join(map(str, readable))}")


def check_model(facts: Facts) -> Advice:
    """Check that the model's files make a model that can be served."""
    model, boot = facts.settings.engine.model, facts.settings.engine.boot
    if model is None:
        return _no_model(facts)
    whole = "write a whole model there: config.json, tokenizer, *.safetensors"
    if not (model / "config.json").is_file():
        return Advice("fail", f"{model} is no model folder: it has no config.json", whole)
    try:
        served = read_served_model(model)
    except HotReloadError as unfit:
        return Advice("fail", f"{model} cannot be served: {unfit}", whole)
    engine = facts.settings.engine
    lacks = {whole: unservable(model, _tokenizer(facts))}
    lacks["set another [engine] tp"] = why_unshared(model, engine.tp, engine.args)
    for todo, why in lacks.items():
        if why is not None:
            return Advice("fail", f"{model} cannot be served: {why}", todo)
    if not served.tensors and boot != "dummy":
        says = f"{model} holds no weights: a start needs a checkpoint that is sound"
        return Advice("warn", says, "put weights there, so that there is always something to serve")
    return Advice("ok", f"{model} holds {len(served.tensors)} tensors")


def _no_model(facts: Facts) -> Advice:
    if facts.hub_cache is None:
        return Advice("fail", "no model is named", "set [engine] model to the folder of one")
    return Advice("ok", "the first commit of the hub is the model")


def _tokenizer(facts: Facts) -> Path | None:
    """Return the tokenizer's folder by [engine.args]."""
    path = facts.settings.engine.args.get("tokenizer_path")
    return Path(path) if isinstance(path, str) else None


def check_source_file_system(facts: Facts) -> Advice:
    """Check that inotify reports other machines' writes to the watched folder."""
    folder = facts.settings.source.path
    if folder is None or not folder.exists():
        return not_configured("no folder is watched")
    remote = remote_file_system(folder, facts.mounts)
    if remote is not None:
        rescan = facts.settings.source.rescan
        says = f"{folder} is on {remote}: only a look sees what other machines write there"
        return Advice("warn", says, f"it is looked at every {rescan:g} s ([source] rescan)")
    return Advice("ok", f"{folder} is on {mount_of(folder, facts.mounts).kind}")


def check_state_file_system(facts: Facts) -> Advice:
    """Check that the state survives a reboot."""
    state = facts.settings.state.directory
    kind = mount_of(find_existing(state), facts.mounts).kind
    if kind in FORGETFUL:
        todo = "set [state] directory to a folder on a disk"
        return Advice("warn", f"{state} is on {kind}: a reboot forgets what was live", todo)
    return Advice("ok", f"{state} is on {kind}")


def check_state_free(facts: Facts) -> Advice:
    """Check that no other daemon than that of the socket uses the state folder."""
    state = facts.settings.state.directory
    users = list(holders.holders(os.path.realpath(state / state_lock.LOCK)))
    others = [each for each in users if each not in facts.daemon]
    if others:
        names = ", ".join(map(str, others))
        socket = state_lock.user_of(state).get("socket")
        says = f"{state} is in use by {names}, which serves on {socket}"
        return Advice("fail", says, "set another [state] directory, or stop that one")
    if users:
        return Advice("ok", f"{state} is in use by the daemon itself, {users[0]}")
    return Advice("ok", f"no process uses {state}")


def check_api_keys(facts: Facts) -> Advice:
    """Check that only the daemon can read the API keys, and that an open address has some."""
    server = facts.settings.server
    if server.api_keys_file is None and server.tcp and not is_local(server.tcp):
        says = f"whoever reaches {server.tcp} may use the model"
        return Advice("warn", says, "set [server] api_keys_file, or a tcp of 127.0.0.1")
    return check_secret(facts, server.api_keys_file, "API key")


def check_tls(facts: Facts) -> Advice:
    """Check that the certificate of the TCP port and its key are a pair, and readable."""
    cert, key = facts.settings.server.tls_cert, facts.settings.server.tls_key
    if cert is None or key is None:
        return not_configured("no certificate is configured")
    name = facts.user.name
    for file in (cert, key):
        if file.exists() and not facts.user.may(file, os.R_OK):
            return Advice("fail", f"{name} may not read {file}", f"chown {name} {file}")
    try:
        tls_pair(facts.settings)
    except ConfigError as fault:
        return Advice("fail", str(fault), "write a certificate and its key there")
    if key.stat().st_mode & 0o077:
        return Advice("warn", f"others may read {key}", f"chmod 600 {key}")
    return Advice("ok", f"{key} is the key of {cert}")


def check_secret(facts: Facts, path: Path | None, what: str) -> Advice:
    """Check that only the daemon can read this file; the units may pass it on."""
    if path is None:
        return not_configured(f"no {what} is configured")
    if not path.is_file():
        return Advice("fail", f"{path} is not there", f"write the {what} into it")
    if os.access(path, os.R_OK) and not path.read_text().strip():
        return Advice("fail", f"{path} is empty", f"write the {what} into it")
    if path.stat().st_mode & 0o077:
        return Advice("warn", f"others may read {path}", f"chmod 600 {path}")
    return _reaches_the_daemon(facts, path)


def _reaches_the_daemon(facts: Facts, path: Path) -> Advice:
    if facts.user.may(path, os.R_OK):
        return Advice("ok", f"{path} is secret")
    if path.name in machine.credentials(facts.units, facts.unit):
        return Advice("ok", f"{path} is read by root and passed on (LoadCredential)")
    says = f"{facts.user.name} may not read {path}, and no unit passes it on"
    todo = f"chown {facts.user.name} {path}"
    return Advice("fail", says, f"hotreload install-unit; or {todo}")


def check_clock(facts: Facts) -> Advice:
    """Check the clock: checkpoints without a step number are ordered by their times."""
    ahead = _newest(facts.settings.source.path) - time.time()
    if ahead > 60:
        says = f"a checkpoint was changed {ahead:.0f} s in the future"
        return Advice("warn", says, "set the clock here or where it was written")
    if clock_is_unsynchronised():
        return Advice("warn", "nothing keeps the clock right", "timedatectl set-ntp true")
    return Advice("ok", f"{time.strftime('%Y-%m-%d %H:%M:%S')}, kept right by the network")


def _newest(folder: Path | None) -> float:
    newest = 0.0
    if folder is not None and folder.is_dir():
        for each in folder.iterdir():
            with suppress(FileNotFoundError):  # a broken link
                newest = max(newest, each.stat().st_mtime)
    return newest


def clock_is_unsynchronised() -> bool:
    """Return whether adjtimex(2) reports an unsynchronised clock; the call changes nothing."""
    timex = (ctypes.c_long * 64)()
    state = ctypes.CDLL(None).adjtimex(timex)
    status = ctypes.c_int.from_buffer(timex, 5 * ctypes.sizeof(ctypes.c_long)).value
    return bool(state == TIME_ERROR or status & STA_UNSYNC)
