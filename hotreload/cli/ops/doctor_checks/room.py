"""Checks of `hotreload doctor` for disk, memory, open files and inotify."""

import os
import shutil
from itertools import islice
from pathlib import Path

from hotreload.cli.ops import machine
from hotreload.cli.ops.doctor_checks.advice import Advice, Facts, find_existing, not_configured
from hotreload.cli.ops.units import MemoryLimits
from hotreload.core.rules import BY_MEMORY
from hotreload.engine.memory_plan import MemoryPlan, plan_memory
from hotreload.engine.weights.memory.host_memory import host_bytes_free
from hotreload.facts.names import DEFAULT_STATE
from hotreload.settings.sections import Settings

INOTIFY = Path("/proc/sys/fs/inotify")
MOST_FOLDERS = 20_000
FEWEST_WATCHES = 8192
FILES_OF_OURS = 256
"""The open files of a daemon beside its clients: engine, sockets, libraries, a checkpoint."""
GIB = 2**30
BESIDE_WEIGHTS = 8 * GIB
"""Host memory of a daemon beside its weights: JAX, compiled programs, requests, libraries."""
COMMITS_KEPT = 3
"""The commits in a hub's cache: the live, the previous and the wanted one."""


def check_open_files(facts: Facts) -> Advice:
    """Check that the daemon may open enough files for its clients and the engine."""
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
    """Check that one more process of this user may watch folders, and as many as needed."""
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
    """Return the commands that set a limit for good; `sysctl -w` alone is lost at a reboot."""
    line = f"fs.inotify.{name} = {value}"
    file = "/etc/sysctl.d/60-hotreload.conf"
    return f"echo '{line}' >>{file} && sysctl --system (until then the folder is polled)"


def check_disk(facts: Facts) -> Advice:
    """Check that there is room for the private copy of a checkpoint."""
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
    """Check that the daemon may write the hub's cache, and that there is room for downloads."""
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
    """Return whether StateDirectory= or CacheDirectory= of the unit will make the folder."""
    ours = (DEFAULT_STATE, Path("/var/cache/hotreload"))
    return any(each in (path, *path.parents) and not each.exists() for each in ours)


def _unknown(says: str) -> Advice:
    """Return the advice if neither model nor downloads show a checkpoint's size."""
    todo = "compare it with the size of a checkpoint; here none is to be seen yet"
    return Advice("warn", says, todo)


def check_memory(facts: Facts) -> Advice:
    """Check the host memory for staging a checkpoint; attempts check the device's memory."""
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
    """Return the number of sets of weights that the host must hold beside those it holds now.

    They are the loader's set, which may wait there by [reload] memory, and one kept for a
    rollback; on a CPU also all sets of the device but the live one.
    """
    reload = facts.settings.reload
    kept = 1 if reload.keep_previous == "host" else 0
    if facts.devices and facts.settings.engine.device != "cpu":
        return 1 + kept
    # A set that waits on the host was loaded beside the loader's set: that makes two.
    # `sets = "auto"` needs no more than two.
    loading = 2 if reload.memory == "host" or reload.sets == BY_MEMORY else reload.sets
    return loading + kept + (0 if facts.daemon else 1)


def memory_limits(facts: Facts) -> MemoryLimits | str:
    """Return the limits of a daemon's host memory, or the reason why they are unknown.

    The daemon is slowed down above all that it may need at a time, and killed one set later.
    """
    one = facts.weights_bytes
    if one is None:
        return "no weights are to be seen yet, in [engine] model or from the hub"
    if not facts.devices or facts.settings.engine.device == "cpu":
        return "on a CPU the KV pool is host memory too"
    high = _rounded_up(BESIDE_WEIGHTS + _sets_on_host(facts) * one)
    return MemoryLimits(high, _rounded_up(high + one))


def check_memory_limits(facts: Facts) -> Advice:
    """Check that the unit's limit on memory, if any, is as large as the daemon may need."""
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


def planned_memory(settings: Settings, *, is_cpu: bool) -> MemoryPlan | None:
    """Plan the memory of each device; the size of one that is no CPU is not known here."""
    engine, model = settings.engine, settings.engine.model
    if model is None:
        return None
    return plan_memory(
        model,
        tp=engine.tp,
        dtype=engine.dtype,
        args=engine.args,
        sets=settings.reload.sets_planned,
        is_cpu=is_cpu,
    )


def check_device_memory(facts: Facts) -> Advice:
    """Check that weights and KV pool fit on each device, as far as its size is known."""
    is_cpu = not facts.devices or facts.settings.engine.device == "cpu"
    plan = planned_memory(facts.settings, is_cpu=is_cpu)
    if plan is None:
        return not_configured("no model's headers are to be seen yet")
    parts = ", ".join(f"{name} {_bytes(size)}" for name, size in plan.rows() if size is not None)
    if (why := plan.why_not()) is not None:
        return Advice("warn", f"{parts}: {why.partition(': ')[0]}", why.partition(": ")[2])
    unknown = "" if is_cpu else "; the start learns the device's size, and says if it is too small"
    return Advice("ok", f"on each device: {parts}{unknown}")


def _rounded_up(size: int) -> int:
    return -(-size // GIB) * GIB


def _gib(size: int) -> str:
    return f"{size / GIB:g}G"


def _bytes(size: int) -> str:
    """Return a size in the largest unit that fits."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} bytes"
