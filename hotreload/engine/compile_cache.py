"""Keeps compiled programs for the next start: a folder for each set of versions and devices.

JAX loads its files as programs, and they run in our process: no other user may write to the folder
or to a folder above it.
"""

import grp
import hashlib
import json
import logging
import os
import pwd
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotreload.engine.versions import installed_version
from hotreload.errors import ConfigError

log = logging.getLogger("hotreload.engine")

JAX_VARIABLE = "JAX_COMPILATION_CACHE_DIR"
"""Names to JAX and to upstream the folder of compiled programs; where it is set, it decides."""

KEPT = 2
"""Folders that stay, those that were used last: an upgrade that is taken back finds its own."""

COMPILES = ("hotreload", "jax", "jaxlib", "sglang-jax")
"""Packages that decide which programs are compiled, and how."""
LEFT_OUT = ".left_out"
"""Ends the name of a folder that no start reads any more."""
GIVE_NAME_BACK = (
    "nothing: this start compiles anew, and the next reads what it keeps; if the last one died of "
    "something else, that folder may have its name back while the daemon is stopped"
)
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class CompileCache:
    """A place where compiled programs are kept, as the operator decided."""

    root: Path
    """The folder that holds one for each set of versions and devices."""
    is_default: bool = False
    """True if the operator named no folder: ours is cleared, and a start does not fail for it."""


@contextmanager
def keeping_programs(cache: CompileCache | None, devices: Sequence[Any]) -> Iterator[None]:
    """Keep all that an engine which starts in here ever compiles; None leaves that to JAX.

    ConfigError when others can write the folder that the operator named, or we cannot.
    """
    folder = _prepare(cache, name_for(devices)) if cache is not None else None
    if folder is None:
        yield
        return
    before = os.environ.get(JAX_VARIABLE)
    # Upstream reads it while it starts, and has JAX keep to it.
    os.environ[JAX_VARIABLE] = str(folder)
    try:
        yield
    finally:
        del os.environ[JAX_VARIABLE]
        if before is not None:
            os.environ[JAX_VARIABLE] = before


def leave_out(cache: CompileCache) -> Path | None:
    """Move what the last start kept or read out of the way; return where it lies now, if any."""
    try:
        last = max(_kept_in(cache.root), key=lambda each: each.stat().st_mtime, default=None)
        if last is None:
            return None
        left = last.with_name(last.name + LEFT_OUT)
        shutil.rmtree(left, ignore_errors=True)
        last.rename(left)
    except OSError as fault:
        words = f"{fault.filename}: {fault.strerror}"
        todo = "remove what is in it if starts end by a signal again"
        log.warning("compile_cache.not_left_out", extra={"why": words, "todo": todo})
        return None
    log.warning("compile_cache.left_out", extra={"path": str(left), "todo": GIVE_NAME_BACK})
    return left


def _kept_in(root: Path) -> list[Path]:
    folders = [each for each in root.iterdir() if each.is_dir()] if root.is_dir() else []
    return [each for each in folders if not each.name.endswith(LEFT_OUT)]


def name_for(devices: Sequence[Any]) -> str:
    """The name of the folder for these versions of all that compiles, and these devices."""
    client = devices[0].client
    versions = {name: installed_version(name) for name in COMPILES}
    made_by = {
        "versions": versions,
        "platform": [client.platform, client.platform_version],
        "devices": [_describe(each) for each in client.devices()],
        "processor": _processor(),
    }
    digest = hashlib.sha256(json.dumps(made_by, sort_keys=True).encode()).hexdigest()[:12]
    names = [f"{name}-{version}" for name, version in versions.items() if name != "jaxlib"]
    return "_".join([f"{client.platform}-{len(client.devices())}", *names, digest])


def _describe(device: Any) -> list[Any]:
    coords = getattr(device, "coords", None)
    return [device.device_kind, device.process_index, list(coords) if coords else None]


def _processor() -> list[str]:
    """The kind of processor: a program for one may use instructions that another has not."""
    told = ("model name", "flags", "Features", "CPU part")
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines()
    except OSError:
        return [os.uname().machine]
    return [os.uname().machine, *(line for line in first if line.startswith(told))]


# --- the folder ------------------------------------------------------------------------------


def _prepare(cache: CompileCache, name: str) -> Path | None:
    """The folder of this name, made and checked; None where a start goes on without one."""
    try:
        folder = _make_folder(cache.root, name)
    except (OSError, ConfigError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else str(fault)
        words = f"{cache.root}: {why}"
        if not cache.is_default:
            raise ConfigError(f"[engine] compile_cache: {words}") from fault
        todo = "mend that, or the next start compiles anew; [engine] compile_cache names another"
        log.warning("compile_cache.not_used", extra={"why": words, "todo": todo})
        return None
    removed = _clear(cache.root, folder) if cache.is_default else []
    there = {"path": str(folder), "programs": sum(1 for _ in folder.glob("*-cache"))}
    log.info("compile_cache.used", extra={**there, "removed": removed})
    return folder


def _make_folder(root: Path, name: str) -> Path:
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = root / name
    folder.mkdir(mode=0o700, exist_ok=True)
    for each in (root, folder):
        _check_ours_alone(each)
    for each in {*root.absolute().parents, *root.resolve().parents}:
        _check_way(each)
    os.utime(folder)  # so `_clear` knows when it was used last
    return folder


def _check_ours_alone(folder: Path) -> None:
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise ConfigError(f"{folder} belongs to uid {found.st_uid}, who could put programs into it")
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        todo = f"chmod 700 {folder}, and remove what is in it if others had the time to write it"
        raise ConfigError(f"{folder} is open to others, who could put programs into it: {todo}")


def _check_way(folder: Path) -> None:
    """Refuse a folder on the way that others can write: they can put another in our place."""
    found = folder.stat()
    others = "who could put another cache in the place of this one"
    if found.st_uid not in (0, os.geteuid()):
        raise ConfigError(f"{folder} belongs to uid {found.st_uid}, {others}")
    if not found.st_mode & OTHERS_WRITE or found.st_mode & stat.S_ISVTX:
        return
    if found.st_mode & stat.S_IWOTH or not _is_private(found.st_gid):
        raise ConfigError(f"{folder} may be written by others, {others}: chmod go-w {folder}")


def _is_private(group: int) -> bool:
    """True if our user is alone in this group, as many systems make one for each."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
        found = grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == name and set(found.gr_mem) <= {name}


def _clear(root: Path, used: Path) -> list[str]:
    """Remove the folders of versions and devices that are gone; return their names."""
    others = [each for each in root.iterdir() if each != used and each.is_dir()]
    others.sort(key=lambda each: each.stat().st_mtime, reverse=True)
    for old in (gone := others[KEPT - 1 :]):
        shutil.rmtree(old, ignore_errors=True)
    return [each.name for each in gone]
