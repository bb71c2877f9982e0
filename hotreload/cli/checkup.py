"""What `hotreload doctor` looks at: one small function each, which says what to do.

Looks and changes nothing. `machine` knows the machine, `config` the settings.
"""

import ctypes
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

from hotreload.cli import machine
from hotreload.config import Settings, check_servable
from hotreload.errors import ConfigError

WORST_FIRST = ("fail", "warn", "ok")
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "lustre", "gpfs", "fuse")
"""File systems where what others write makes no event here."""
FORGETFUL = ("tmpfs", "ramfs")
MOST_FOLDERS = 20_000
LONGEST_PATH = 107
FEWEST_WATCHES = 8192
DEVICE_SECONDS = 120
STA_UNSYNC, TIME_ERROR = 0x40, 5
WEIGHTS = "*.safetensors"


@dataclass(frozen=True, slots=True)
class Advice:
    """How one thing is, and what to do about it."""

    verdict: Literal["ok", "warn", "fail"]
    says: str
    todo: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the checks go by."""

    settings: Settings
    user: machine.User
    """Whoever the daemon runs as."""
    devices: Sequence[Path]
    ask_jax: bool = False

    @property
    def weights_bytes(self) -> int:
        """How large one set of weights is, by the model's files."""
        model = self.settings.engine.model
        return sum(file.stat().st_size for file in model.glob(WEIGHTS)) if model else 0


Check = Callable[[Facts], Advice]


def check_settings(facts: Facts) -> Advice:
    """Do the settings say all that `serve` needs?"""
    try:
        check_servable(facts.settings)
    except ConfigError as missing:
        first, *others = (line.strip() for line in str(missing).splitlines())
        where = "in the file that --config names; `hotreload check-config --defaults` prints one"
        return Advice("fail", f"{first} {'; '.join(others)}".strip(), f"set it {where}")
    return Advice("ok", "the settings say all that is needed to serve")


def check_devices(facts: Facts) -> Advice:
    """Is there an accelerator, and may the daemon open it?"""
    wants_one = facts.settings.engine.device == "tpu"
    if not facts.devices:
        says = "there is no /dev/accel* and no /dev/vfio/*"
        if wants_one:
            return Advice("fail", says, "load the driver, or set [engine] device = 'cpu'")
        return Advice("ok", f"{says}: the engine will use the CPU")
    closed = [node for node in facts.devices if not facts.user.may(node, os.R_OK | os.W_OK)]
    if closed:
        names = " ".join(map(str, closed))
        todo = f"let them: a udev rule, or chgrp {facts.user.name} {names} && chmod g+rw {names}"
        return Advice("fail", f"{facts.user.name} may not open {names}", todo)
    return Advice("ok", f"{facts.user.name} may open {' '.join(map(str, facts.devices))}")


def check_device_free(facts: Facts) -> Advice:
    """Does another process hold the accelerator?"""
    held = {node: list(machine.holders(node)) for node in facts.devices}
    busy = [f"{node}: {', '.join(by)}" for node, by in held.items() if by]
    if busy and not _is_answered(facts):
        return Advice("warn", f"held by {'; '.join(busy)}", "end that process, or wait for it")
    return Advice("ok", "no other process holds an accelerator")


def check_jax(facts: Facts) -> Advice:
    """What does JAX find? Asked in a process of its own, as it takes the accelerator."""
    if not facts.ask_jax:
        return Advice("ok", "not asked; --jax does (not while a daemon runs)")
    code = "import jax; print(*jax.devices(), sep=', ')"
    try:
        told = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=DEVICE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Advice("fail", f"JAX found nothing in {DEVICE_SECONDS} s", "look at the driver")
    if told.returncode:
        last = (told.stderr.strip().splitlines() or ["it died"])[-1]
        return Advice("fail", f"JAX cannot start: {last}", "free the device, or fix JAX_PLATFORMS")
    return Advice("ok", f"JAX finds {told.stdout.strip()}")


def check_folders(facts: Facts) -> Advice:
    """Can the daemon read the model and the checkpoints, and write its state?"""
    settings, user = facts.settings, facts.user
    readable = [p for p in (settings.engine.model, settings.source.path) if p is not None]
    for path in readable:
        if not path.is_dir():
            return Advice("fail", f"{path} is no folder", f"make it, or name another: {path}")
        if not user.may(path, os.R_OK | os.X_OK):
            return Advice("fail", f"{user.name} may not read {path}", f"chmod a+rX {path}")
    state = settings.state.directory
    there = state if state.exists() else state.parent
    if state.exists() and not user.may(there, os.W_OK | os.X_OK):
        todo = f"chown {user.name} {state}"
        return Advice("fail", f"{user.name} may not write to {state}", todo)
    if not readable:
        return Advice("ok", "no folder is to be read")
    return Advice("ok", f"{user.name} may read {' and '.join(map(str, readable))}")


def check_source_file_system(facts: Facts) -> Advice:
    """Does what is written to the watched folder make events here?"""
    folder = facts.settings.source.path
    if folder is None or not folder.exists():
        return Advice("ok", "no folder is watched")
    kind = machine.file_system(folder)
    if kind.partition(".")[0] in REMOTE:
        rescan = facts.settings.source.rescan
        says = f"{folder} is on {kind}: what others write there is seen by looking alone"
        return Advice("warn", says, f"it is looked at every {rescan:g} s ([source] rescan)")
    return Advice("ok", f"{folder} is on {kind}")


def check_state_file_system(facts: Facts) -> Advice:
    """Does the state survive a reboot?"""
    state = facts.settings.state.directory
    kind = machine.file_system(_existing(state))
    if kind in FORGETFUL:
        todo = "set [state] directory to a folder on a disk"
        return Advice("warn", f"{state} is on {kind}: a reboot forgets what was live", todo)
    return Advice("ok", f"{state} is on {kind}")


def check_inotify(facts: Facts) -> Advice:
    """May as many folders be watched as there are?"""
    folder = facts.settings.source.path
    limit = int(Path("/proc/sys/fs/inotify/max_user_watches").read_text())
    found = 0
    if folder is not None:
        found = sum(1 for _ in islice(os.walk(folder, onerror=None), MOST_FOLDERS))
    need = max(FEWEST_WATCHES, 2 * found)
    if limit < need:
        todo = f"sysctl fs.inotify.max_user_watches={need} (until then it is polled)"
        return Advice("warn", f"{limit} inotify watches for {found} folders", todo)
    return Advice("ok", f"{limit} inotify watches for {found} folders")


def check_socket(facts: Facts) -> Advice:
    """Can the unix socket be had, or does a daemon answer on it already?"""
    path = facts.settings.server.socket
    if len(os.fsencode(path)) > LONGEST_PATH:
        todo = "set [server] socket to a shorter path"
        return Advice("fail", f"{path} is longer than {LONGEST_PATH} bytes", todo)
    if _is_answered(facts):
        return Advice("ok", f"{path} is listened on")
    if path.exists() and not stat.S_ISSOCK(path.stat().st_mode):
        return Advice("fail", f"{path} exists and is no socket", "move it away")
    if not path.parent.is_dir():
        return Advice("ok", f"{path.parent} is made at the start")
    return Advice("ok", f"{path} is free")


def check_token(facts: Facts) -> Advice:
    """Is a token file there, and secret?"""
    path: Path | None = getattr(facts.settings.source, "token_file", None)
    if path is None:
        return Advice("ok", "no token is configured")
    if not path.is_file():
        return Advice("fail", f"{path} is not there", "write the hub token into it")
    if not path.read_text().strip():
        return Advice("fail", f"{path} is empty", "write the hub token into it")
    if not facts.user.may(path, os.R_OK):
        return Advice("ok", f"{path} is read by root and passed on (LoadCredential)")
    if path.stat().st_mode & 0o077:
        return Advice("warn", f"others may read {path}", f"chmod 600 {path}")
    return Advice("ok", f"{path} is secret")


def check_disk(facts: Facts) -> Advice:
    """Is there room for the private copy that is made of each checkpoint?"""
    state, need = facts.settings.state.directory, facts.weights_bytes
    free = shutil.disk_usage(_existing(state)).free
    says = f"{_gb(free)} free in {state}, a copy of a checkpoint takes {_gb(need)}"
    if free < need:
        return Advice("fail", says, "free some, or set [state] directory to a larger disk")
    if free < 2 * need:
        return Advice("warn", says, "free some: at a start the copy comes on top of leftovers")
    return Advice("ok", says)


def check_memory(facts: Facts) -> Advice:
    """Is there room for what is staged on the host? Device memory is looked at in an attempt."""
    free, need = machine.memory_available(), 2 * facts.weights_bytes
    says = f"{_gb(free)} of memory available, two sets of weights take {_gb(need)}"
    if free < need and not _is_answered(facts):
        return Advice("warn", says, "end what else runs, or the loading may be killed")
    return Advice("ok", says)


def check_clock(facts: Facts) -> Advice:
    """Is the clock right? Times order checkpoints that have no step number, and read well."""
    ahead = _newest(facts.settings.source.path) - time.time()
    if ahead > 60:
        says = f"a checkpoint was changed {ahead:.0f} s in the future"
        return Advice("warn", says, "set the clock here or where it was written")
    if _clock_is_unsynchronised():
        return Advice("warn", "nothing keeps the clock right", "timedatectl set-ntp true")
    return Advice("ok", f"{time.strftime('%Y-%m-%d %H:%M:%S')}, kept right by the network")


CHECKS: dict[str, Check] = {
    "settings": check_settings,
    "devices": check_devices,
    "device free": check_device_free,
    "jax": check_jax,
    "folders": check_folders,
    "watched on": check_source_file_system,
    "state on": check_state_file_system,
    "inotify": check_inotify,
    "socket": check_socket,
    "token": check_token,
    "disk": check_disk,
    "memory": check_memory,
    "clock": check_clock,
}
"""One line a check, in the order they are told."""


def examine(facts: Facts) -> dict[str, Advice]:
    """Make every check; one that breaks is advice too."""
    return {name: _made(check, facts) for name, check in CHECKS.items()}


def _made(check: Check, facts: Facts) -> Advice:
    try:
        return check(facts)
    except OSError as error:
        return Advice("warn", f"cannot be looked at: {error}", "run it as root, or as the user")


def _is_answered(facts: Facts) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(os.fsencode(facts.settings.server.socket)) == 0


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next(each for each in (path, *path.absolute().parents) if each.exists())


def _newest(folder: Path | None) -> float:
    if folder is None or not folder.is_dir():
        return 0.0
    return max((each.stat().st_mtime for each in folder.iterdir()), default=0.0)


def _clock_is_unsynchronised() -> bool:
    """What adjtimex(2) says; asking with no mode set changes nothing."""
    timex = (ctypes.c_long * 64)()
    state = ctypes.CDLL(None).adjtimex(timex)
    status = ctypes.c_int.from_buffer(timex, 5 * ctypes.sizeof(ctypes.c_long)).value
    return bool(state == TIME_ERROR or status & STA_UNSYNC)


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
