"""Runs all checks of `hotreload doctor` in order; has those of settings, devices, engine, sockets.

The checks change nothing. They do not connect to the daemon's socket: a connection may start the
daemon.
"""

import os
import stat
import subprocess
import sys
from pathlib import Path

from hotreload.cli.ops import machine
from hotreload.cli.ops.doctor_checks import hosts, places, room
from hotreload.cli.ops.doctor_checks.advice import Advice, Check, Facts, not_configured
from hotreload.engine.versions import (
    SUPPORTED,
    how_to_install,
    installed_version,
    why_refused,
    why_untested,
)
from hotreload.facts import holders
from hotreload.facts.names import LONGEST_SOCKET_PATH
from hotreload.facts.upstream import WHY_XLA_FLAGS, XLA_FLAGS
from hotreload.settings.load import missing_to_serve

DEVICE_SECONDS = 120.0
IMPORT_ENGINE = "from hotreload.engine import sglang; from sgl_jax.srt.entrypoints import engine"
IMPORT_SECONDS = 120.0
ASK_JAX = """import jax
found = jax.devices()
print(found[0].platform, len(found), sep="\\n")
print(*found, sep=", ")"""


def check_settings(facts: Facts) -> Advice:
    """Check that the settings have all that `serve` needs."""
    if missing := [*missing_to_serve(facts.settings)]:
        where = "in the file that --config names; `hotreload check-config --defaults` prints one"
        return Advice("fail", "; ".join(missing), f"set it {where}")
    return Advice("ok", "the settings say all that is needed to serve")


def check_devices(facts: Facts) -> Advice:
    """Check for an accelerator, and that the daemon may open it."""
    wants_one = facts.settings.engine.device in ("tpu", "gpu")
    if not facts.devices:
        says = "there is no /dev/accel*, no /dev/vfio/* and no /dev/nvidia*"
        if wants_one:
            return Advice("fail", says, "load the driver, or set [engine] device = 'cpu'")
        return Advice("ok", f"{says}: the engine will use the CPU; {_of_xla('cpu')}")
    if facts.settings.engine.device == "cpu":
        return Advice("ok", f"[engine] device = 'cpu': no accelerator is used; {_of_xla('cpu')}")
    closed = [node for node in facts.devices if not facts.user.may(node, os.R_OK | os.W_OK)]
    if closed:
        names = " ".join(map(str, closed))
        todo = f"add a udev rule, or chgrp {facts.user.name} {names} && chmod g+rw {names}"
        return Advice("fail", f"{facts.user.name} may not open {names}", todo)
    says = f"{facts.user.name} may open {' '.join(map(str, facts.devices))}"
    if any(node.name.startswith("nvidia") for node in facts.devices):
        says += f"; {_of_xla('gpu')}"
    return Advice("ok", says)


def _of_xla(platform: str) -> str:
    """Say which flags XLA gets on a platform, and why."""
    flags, why = " ".join(XLA_FLAGS[platform]), WHY_XLA_FLAGS[platform]
    return f"XLA gets {flags}, but for what XLA_FLAGS names itself: {why}"


def check_device_free(facts: Facts) -> Advice:
    """Check that no other process than the daemon holds the accelerator."""
    held = {node: list(holders.holders(node)) for node in facts.devices}
    ours = {process for by in held.values() for process in by if process in facts.daemon}
    strangers = {node: [each for each in by if each not in ours] for node, by in held.items()}
    busy = [f"{node}: {', '.join(map(str, by))}" for node, by in strangers.items() if by]
    if busy:
        return Advice("warn", f"held by {'; '.join(busy)}", "end that process, or wait for it")
    if ours:
        return Advice("ok", f"held by the daemon itself, {', '.join(map(str, ours))}")
    seen = "" if os.geteuid() == 0 else " that we may look at (root may look at all)"
    return Advice("ok", f"no process{seen} holds an accelerator")


def check_engine(facts: Facts) -> Advice:
    """Check for a supported release of sglang-jax, and for a jax with which it can be imported.

    The import takes seconds, and works for every tested pair of versions: only others are tried.
    """
    untested = why_untested()
    engine = installed_version("sglang-jax")
    if untested is None:
        assert engine is not None, "or it would be untested"
        return Advice(
            "ok", f"sglang-jax {engine} with jax {installed_version('jax')}{_can(engine)}"
        )
    if refused := why_refused():
        return Advice("fail", refused, how_to_install())
    fault = _import_fault() if engine is not None else "there is none to import"
    if fault:
        return Advice("fail", f"{untested}: {fault}", how_to_install())
    return Advice("warn", f"{untested}, and it can be imported", how_to_install())


def _can(engine: str) -> str:
    """Return the abilities of this release that others lack."""
    can = SUPPORTED[engine].can
    words = {"has": [name for name in can if can[name]], "lacks": [n for n in can if not can[n]]}
    said = (f"it {verb} {', '.join(names)}" for verb, names in words.items() if names)
    return "".join(f"; {each}" for each in said)


def _import_fault() -> str | None:
    """Return the last line of the error of the engine's import; None if it works."""
    told = _run_apart(IMPORT_ENGINE, IMPORT_SECONDS)
    if told is None:
        return f"its import does not end in {IMPORT_SECONDS:g} s"
    return _last_words(told) if told.returncode else None


def _run_apart(program: str, within: float) -> "subprocess.CompletedProcess[str] | None":
    """Run a program in a new Python process; return None if it does not end within the time."""
    command = [sys.executable, "-c", program]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=within, check=False)
    except subprocess.TimeoutExpired:
        return None


def _last_words(told: "subprocess.CompletedProcess[str]") -> str:
    return (told.stderr.strip().splitlines() or ["it died"])[-1]


def check_jax(facts: Facts) -> Advice:
    """Check that JAX finds the devices, in a new process, since JAX takes them."""
    if not facts.ask_jax:
        return Advice("ok", "JAX was not asked; --jax asks it (not while a daemon runs)")
    told = _run_apart(ASK_JAX, DEVICE_SECONDS)
    if told is None:
        return Advice("fail", f"JAX found nothing in {DEVICE_SECONDS} s", "look at the driver")
    if told.returncode:
        todo = "free the device, or fix JAX_PLATFORMS"
        return Advice("fail", f"JAX cannot start: {_last_words(told)}", todo)
    platform, count, found = told.stdout.splitlines()[-3:]
    return _advise_device(facts, platform, int(count), found)


def _advise_device(facts: Facts, platform: str, count: int, found: str) -> Advice:
    engine = facts.settings.engine
    wanted, needed = engine.device, engine.tp * engine.replicas // engine.nnodes
    if wanted not in {"auto", platform}:
        plugin = "cuda12" if wanted == "gpu" else wanted
        named = "cuda" if wanted == "gpu" else wanted
        todo = f"set JAX_PLATFORMS to {named}, install jax[{plugin}], or change [engine] device"
        return Advice("fail", f"JAX finds {found}, and [engine] device is {wanted!r}", todo)
    if wanted == "auto" and platform == "cpu" and facts.devices:
        todo = "install jax[tpu] or jax[cuda12], or look at JAX_PLATFORMS"
        return Advice("warn", f"JAX finds {found}, and not the accelerator that is here", todo)
    if count < needed:
        what = "tp times replicas" if engine.nnodes == 1 else "tp divided by nnodes"
        todo = f"set [engine] {what} to {count} or less, or look for the missing devices"
        return Advice("fail", f"JAX finds {found}; [engine] {what} is {needed}", todo)
    return Advice("ok", f"JAX finds {found}")


def check_socket(facts: Facts) -> Advice:
    """Check that the daemon can listen on the unix socket, or listens there already."""
    path = facts.settings.server.socket
    if len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
        todo = "set [server] socket to a shorter path"
        return Advice("fail", f"{path} is longer than {LONGEST_SOCKET_PATH} bytes", todo)
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return _may_be_made(facts, path)
    if not stat.S_ISSOCK(kind):
        return Advice("fail", f"{path} exists and is no socket", "move it away")
    if facts.listener:
        return Advice("ok", _who_listens(facts, facts.listener))
    return _may_be_made(facts, path)


def check_ports(facts: Facts) -> Advice:
    """Check that the daemon's TCP ports are free."""
    settings = facts.settings
    named = {"[server] tcp": settings.server.tcp, "[metrics] address": settings.metrics.address}
    ports = {name: at for name, at in named.items() if at and not at.endswith(":0")}
    for name, address in ports.items():
        taken = holders.tcp_listener(address)
        by = list(holders.holders(taken)) if taken else []
        is_ours = any(each in facts.daemon or each.name == "systemd" for each in by)
        if taken and not is_ours and (by or not facts.listener):
            who = f" by {', '.join(map(str, by))}" if by else " (run this as root to see by whom)"
            return Advice("fail", f"{address} is taken{who}", f"end that, or set another {name}")
    if not ports:
        return not_configured("no port is named to listen on")
    return Advice("ok", f"{' and '.join(ports.values())} can be listened on")


def _who_listens(facts: Facts, listener: str) -> str:
    path = facts.settings.server.socket
    if facts.daemon:
        return f"{', '.join(map(str, facts.daemon))} listens on {path}"
    if any(holders.holders(listener)):
        return f"systemd holds {path}, and starts the daemon at the first connection"
    return f"a process listens on {path}; run this as root to see who"


def _may_be_made(facts: Facts, path: Path) -> Advice:
    user, folder = facts.user, path.parent
    there = folder if folder.exists() else folder.parent
    if not user.may(there, os.W_OK | os.X_OK):
        unit = "hotreload.socket" if facts.settings.engine.node_rank == 0 else "hotreload"
        todo = f"systemctl start {unit}, or install -d -o {user.name} {folder}"
        return Advice("warn", f"no process listens, and {user.name} may not write to {there}", todo)
    return Advice("ok", f"{path} is free" if there == folder else f"{folder} is made at the start")


def check_user(facts: Facts) -> Advice:
    """Return the advice that names the user whose rights the other checks are about."""
    name, own = facts.user.name, machine.user_called(None)
    says = f"what may be read and written is judged for {name}"
    if own is None or name != own.name:
        return Advice("ok", f"{says}; --user names another")
    if own.uid == 0 and machine.user_called(machine.SERVICE_USER) is None:
        why = f"there is no user {machine.SERVICE_USER} yet, as whom the service will run"
        return Advice("ok", f"{says}, who asks: {why}; --user names another")
    return Advice("ok", f"{says}, who asks")


CHECKS: dict[str, Check] = {
    "user": check_user,
    "settings": check_settings,
    "devices": check_devices,
    "device free": check_device_free,
    "engine": check_engine,
    "jax": check_jax,
    "folders": places.check_folders,
    "model": places.check_model,
    "watched on": places.check_source_file_system,
    "state on": places.check_state_file_system,
    "state free": places.check_state_free,
    "inotify": room.check_inotify,
    "open files": room.check_open_files,
    "socket": check_socket,
    "ports": check_ports,
    "hosts": hosts.check_hosts,
    "host ports": hosts.check_host_ports,
    "join secret": lambda of: places.check_secret(
        of, of.settings.engine.join_secret_file, "join secret"
    ),
    "token": lambda of: places.check_secret(of, of.settings.source.token_file, "hub token"),
    "webhook": lambda of: places.check_secret(of, of.settings.source.webhook, "webhook secret"),
    "api keys": places.check_api_keys,
    "admin keys": lambda of: places.check_secret(
        of, of.settings.server.admin_keys_file, "admin key"
    ),
    "tls": places.check_tls,
    "disk": room.check_disk,
    "cache": room.check_cache,
    "memory": room.check_memory,
    "device memory": room.check_device_memory,
    "memory limit": room.check_memory_limits,
    "clock": places.check_clock,
}
"""The checks; each has one line, in this order."""


def examine(facts: Facts) -> dict[str, Advice]:
    """Run every check and yield its advice; an error of a check becomes advice, too."""
    return {name: _run(check, facts) for name, check in CHECKS.items()}


def _run(check: Check, facts: Facts) -> Advice:
    try:
        return check(facts)
    except PermissionError as error:
        return Advice("warn", f"cannot be looked at: {error}", "run it as root, or as the user")
    except OSError as error:
        return Advice("warn", f"cannot be looked at: {error}", "see whether it is there")
