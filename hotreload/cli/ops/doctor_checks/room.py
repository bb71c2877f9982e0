"""Checks of `hotreload doctor`: is there enough disk, memory and inotify?"""

import os
import shutil
from itertools import islice
from pathlib import Path

from hotreload.cli.ops import machine
from hotreload.cli.ops.doctor_checks.advice import Advice, Facts, find_existing, not_configured
from hotreload.cli.ops.units import MemoryLimits
from hotreload.core.rules import BY_MEMORY
from hotreload.engine.weights.memory.host_memory import host_bytes_free

INOTIFY = Path("/proc/sys/fs/inotify")
MOST_FOLDERS = 20_000
FEWEST_WATCHES = 8192
FILES_OF_OURS = 256
"""Files, sockets and libraries of an engine, and room for a checkpoint's."""
GIB = 2**30
BESIDE_WEIGHTS = 8 * GIB
"""Host memory that a daemon may take beside weights: JAX, what it compiles, requests, libraries."""
COMMITS_KEPT = 3
"""Commits a hub's cache holds: the live, the previous and the wanted one."""


def check_open_files(facts: Facts) -> Advice:
    """May the daemon open enough files for all its clients and for the engine?"""
    daemon = facts.daemon[0].pid if facts.daemon else None
    installed = None if daemon else machine.unit_limit("LimitNOFILE", facts.units, facts.unit)
    most = installed or machine.most_files(daemon or "self")
    if most is None:
        return Advice("ok", "any number of files may be open")
    need = facts.settings.server.limits.concurrent + FILES_OF_OURS
    says = f"{most} files may be open, {need} are needed for as many clients as may come"
    todo = f"ulimit -Hn {need}, LimitNOFILE={need} in the unit, or fewer clients"
    if most < FILES_OF_OURS:
        return Advice("fail", f"{says}; the engine alone takes up to {FILES_OF_OURS}", todo)
    if most < need:
        return Advice("warn", says, f"{todo} ([server.limits] concurrent)")
    return Advice("ok", f"{most} files may be open")


def check_inotify(facts: Facts) -> Advice:
    """May one more process of this user watch folders, and as many as there are?"""
    folder = facts.settings.source.path
    watches, instances = (
        int((INOTIFY / name).read_text()) for name in ("max_user_watches", "max_user_instances")
    )
    found = 0
    if folder is not None:
        found = sum(1 for _ in islice(os.walk(folder, onerror=None), MOST_FOLDERS))
    used = machine.inotify_instances(facts.user.uid)
    says = f"{watches} inotify watches for {found} folders"
    need = max(FEWEST_WATCHES, 2 * found)
    if watches < need:
        return Advice("warn", says, _for_good("max_user_watches", need))
    if used >= instances and not facts.daemon:
        says = f"{facts.user.name} has {used} of {instances} inotify instances already"
        return Advice("warn", says, _for_good("max_user_instances", 2 * instances))
    return Advice("ok", says)


def _for_good(name: str, value: int) -> str:
    """Say how to set a limit for good: what `sysctl` alone sets is forgotten at a reboot."""
    line = f"fs.inotify.{name} = {value}"
    file = "/etc/sysctl.d/60-hotreload.conf"
    return f"echo '{line}' >>{file} && sysctl --system (until then the folder is polled)"


def check_disk(facts: Facts) -> Advice:
    """Is there room for the private copy that is made of each checkpoint?"""
    state, need = facts.settings.state.directory, facts.weights_bytes
    free = shutil.disk_usage(find_existing(state)).free
    if need is None:
        return _unknown(f"{_bytes(free)} free in {state}, where a copy of each checkpoint is made")
    says = f"{_bytes(free)} free in {state}, a copy of a checkpoint takes {_bytes(need)}"
    if free < need:
        return Advice("fail", says, "free some, or set [state] directory to a larger disk")
    if free < 2 * need:
        return Advice("warn", says, "free some: at a start the copy comes on top of leftovers")
    return Advice("ok", says)


def check_cache(facts: Facts) -> Advice:
    """May the daemon download from the hub, and is there room for it?"""
    cache, user, need = facts.hub_cache, facts.user, facts.weights_bytes
    if cache is None:
        return not_configured("nothing is downloaded")
    there = find_existing(cache)
    if not user.may(there, os.W_OK | os.X_OK) and not _systemd_makes(cache):
        todo = f"install -d -o {user.name} {cache}"
        return Advice("fail", f"{user.name} may not write to {there}", todo)
    free = shutil.disk_usage(there).free
    if need is None:
        return _unknown(f"{_bytes(free)} free in {cache}, which holds up to {COMMITS_KEPT} commits")
    kept = f"a commit takes {_bytes(need)}, and {COMMITS_KEPT} are kept"
    says = f"{_bytes(free)} free in {cache}, {kept}"
    if free < need:
        return Advice("fail", says, "free some, or set [source] cache to a larger disk")
    return Advice("ok", says)


def _systemd_makes(path: Path) -> bool:
    """True if systemd will make the folder: by StateDirectory= or CacheDirectory= of our unit."""
    ours = (Path("/var/lib/hotreload"), Path("/var/cache/hotreload"))
    return any(each in (path, *path.parents) and not each.exists() for each in ours)


def _unknown(says: str) -> Advice:
    """Advice when no weights show how large a checkpoint is, in the model or from the hub."""
    todo = "compare it with the size of a checkpoint; here none is to be seen yet"
    return Advice("warn", says, todo)


def check_memory(facts: Facts) -> Advice:
    """Is there enough host memory to stage a checkpoint? Attempts look at device memory."""
    one = facts.weights_bytes
    free = host_bytes_free(facts.daemon[0].pid if facts.daemon else "self")
    if one is None:
        return _unknown(
            f"{_bytes(free)} of memory available, and loading takes a checkpoint's size"
        )
    sets = _sets_on_host(facts)
    need = f"{_bytes(sets * one)} ({sets} x the weights)"
    says = f"{_bytes(free)} of memory available, loading takes {need}"
    if free < sets * one:
        todo = "end other programs or raise the limit: else swaps are put off, or the start killed"
        return Advice("warn", says, todo)
    return Advice("ok", says)


def _sets_on_host(facts: Facts) -> int:
    """Count the sets of weights that the host must hold beside what it holds now.

    The loader's set, which waits there if `memory` says so, and one that is kept there for a
    rollback; on a CPU also all that may be on the device, except the set that is live already.
    """
    reload = facts.settings.reload
    kept = 1 if reload.keep_previous == "host" else 0
    if facts.devices and facts.settings.engine.device != "cpu":
        return 1 + kept
    # What waits on the host was loaded beside the loader's set, as where two are on the device.
    # As many as there is memory for need no more than two.
    loading = 2 if reload.memory == "host" or reload.sets == BY_MEMORY else reload.sets
    return loading + kept + (0 if facts.daemon else 1)


def memory_limits(facts: Facts) -> MemoryLimits | str:
    """Reckon how much host memory a daemon needs at most, with room; or say why it cannot be.

    It is slowed down once it holds all that it may need at a time, and killed one set later.
    """
    one = facts.weights_bytes
    if one is None:
        return "no weights are to be seen yet, in [engine] model or from the hub"
    if not facts.devices or facts.settings.engine.device == "cpu":
        return "on a CPU the KV pool is host memory too"
    high = _rounded_up(BESIDE_WEIGHTS + _sets_on_host(facts) * one)
    return MemoryLimits(high, _rounded_up(high + one))


def check_memory_limits(facts: Facts) -> Advice:
    """Is the unit's limit on memory, if it has one, as large as the daemon may need?"""
    limits, most = memory_limits(facts), machine.unit_limit("MemoryMax", facts.units, facts.unit)
    if isinstance(limits, str):
        return not_configured(f"no limit on the unit's memory is reckoned: {limits}")
    reckoned = f"MemoryHigh={_gib(limits.high)} MemoryMax={_gib(limits.most)}"
    if most is None:
        says = f"the unit's memory is not limited; {reckoned} would leave it all that it needs"
        return Advice("ok", f"{says} (hotreload install-unit --limit-memory)")
    if most < limits.most:
        says = f"the unit is killed above {_gib(most)}, and may need more: {reckoned}"
        return Advice("warn", says, "hotreload install-unit --limit-memory")
    return Advice("ok", f"the unit may take {_gib(most)} of memory")


def _rounded_up(size: int) -> int:
    return -(-size // GIB) * GIB


def _gib(size: int) -> str:
    return f"{size / GIB:g}G"


def _bytes(size: int) -> str:
    """A size in the largest unit of which it has some."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"
