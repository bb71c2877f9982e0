"""`hotreload install-unit --remove`: removes the files that install-unit wrote, and no others."""

import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from hotreload.cli.ops.units import OUR_DROP_INS, UNITS_FOLDER
from hotreload.errors import ConfigError

BOOTED = Path("/run/systemd/system")
"""A folder that exists if systemd runs."""
IN_COMMON = (Path("etc/sysusers.d/hotreload.conf"), Path("etc/tmpfiles.d/hotreload.conf"))
"""The files that the service shares with all instances."""
KINDS_OF_UNITS = ("socket", "service")


def remove(instance: str | None, prefix: Path, *, dry_run: bool) -> int:
    """Stop the units and remove their files; settings, keys, state and the user stay."""
    files = [path for path in _list_written(instance, prefix) if path.exists()]
    if dry_run:
        print_removed(files)
        return 0
    runs_here = prefix.resolve() == Path("/") and BOOTED.is_dir()
    units = [
        _unit(instance, kind) for kind in KINDS_OF_UNITS if _file(instance, kind, prefix).exists()
    ]
    if runs_here and units and not run_step(["systemctl", "disable", "--now", *units]):
        return 1
    for path in files:
        unlink(path, "run it as root")
        print(f"removed {path}")
    with suppress(OSError):  # it does not exist, or has drop-ins of the operator
        _drop_ins(instance, prefix).rmdir()
    if runs_here and files and not run_step(["systemctl", "daemon-reload"]):
        return 1
    kept = "settings, keys, state and the service's user stay as they are"
    print(kept if files else f"install-unit wrote nothing here for {_unit(instance, 'service')}")
    return 0


def _list_written(instance: str | None, prefix: Path) -> Iterator[Path]:
    """Yield the files of this service alone, and the shared files that no other instance needs."""
    yield from (_drop_ins(instance, prefix) / name for name in OUR_DROP_INS)
    if instance and any(_other_instances(instance, prefix)):
        return
    yield from (_file(instance, kind, prefix) for kind in KINDS_OF_UNITS)
    if not _file(None if instance else "any", "service", prefix).exists():
        yield from (prefix / path for path in IN_COMMON)


def _other_instances(own: str, prefix: Path) -> Iterator[str]:
    """Yield the other instances that have drop-ins, or that systemd starts."""
    folder = prefix / UNITS_FOLDER
    for found in (*folder.glob("hotreload@?*.service.d"), *folder.glob("*.wants/hotreload@?*.*")):
        instance = found.name.removeprefix("hotreload@").removesuffix(".d").rpartition(".")[0]
        if instance != own:
            yield instance


def _unit(instance: str | None, kind: str) -> str:
    return f"hotreload@{instance}.{kind}" if instance else f"hotreload.{kind}"


def _file(instance: str | None, kind: str, prefix: Path) -> Path:
    """Return the unit's file, which all instances share."""
    return prefix / UNITS_FOLDER / f"hotreload{'@' if instance else ''}.{kind}"


def _drop_ins(instance: str | None, prefix: Path) -> Path:
    return prefix / UNITS_FOLDER / f"{_unit(instance, 'service')}.d"


def print_removed(files: Sequence[Path]) -> None:
    """Say which files would be removed."""
    print("".join(f"### {path}\n# would be removed\n" for path in files), end="")


def run_step(step: Sequence[str]) -> bool:
    """Run a command, and return whether it succeeded."""
    print(f"run {shlex.join(step)}", flush=True)
    code = subprocess.run(step, check=False).returncode
    if code:
        print(f"hotreload: {step[0]} failed with exit code {code}", file=sys.stderr)
    return code == 0


def unlink(path: Path, todo: str) -> None:
    """Remove a file; ConfigError says what to do if that fails."""
    try:
        path.unlink()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be removed: {error.strerror}; {todo}") from error
