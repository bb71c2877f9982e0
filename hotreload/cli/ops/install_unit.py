"""`hotreload install-unit`: writes the systemd units of this installation, or removes them."""

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hotreload.cli.args import add_settings_or_instance, add_verb
from hotreload.cli.ops import machine
from hotreload.cli.ops.doctor_checks.advice import Facts
from hotreload.cli.ops.doctor_checks.room import memory_limits
from hotreload.cli.ops.units import (
    OUR_DROP_INS,
    UNITS_FOLDER,
    Installation,
    MemoryLimits,
    config_of,
    drop_ins_of,
    name_units,
    render,
)
from hotreload.errors import ConfigError, Misused
from hotreload.facts.files import replace
from hotreload.facts.names import DEFAULT_CONFIG
from hotreload.features import FEATURES
from hotreload.settings.load import load

BOOTED = Path("/run/systemd/system")
"""A folder that exists if systemd runs."""
IN_COMMON = (Path("etc/sysusers.d/hotreload.conf"), Path("etc/tmpfiles.d/hotreload.conf"))
"""The files that the service shares with all instances."""
KINDS_OF_UNITS = ("socket", "service")


def add(verbs: Any) -> None:
    """Add the verb."""
    parser = add_verb(verbs, "install-unit", run)
    add_settings_or_instance(parser)
    parser.add_argument(
        "--user",
        metavar="NAME",
        default="hotreload",
        help="the user the service runs as (hotreload); systemd-sysusers makes it if need be",
    )
    parser.add_argument(
        "--exec", type=Path, metavar="FILE", help="the command to start (this installation's)"
    )
    parser.add_argument(
        "--prefix", type=Path, metavar="DIR", default=Path("/"), help="write beneath DIR, not /"
    )
    parser.add_argument(
        "--limit-memory", action="store_true", help="set the limits that `hotreload doctor` reckons"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the files, write nothing")
    then = parser.add_mutually_exclusive_group()
    then.add_argument("--enable", action="store_true", help="also run what it would print to run")
    then.add_argument("--remove", action="store_true", help="take back what was written")


def run(args: argparse.Namespace) -> int:
    """Write the files, and print the next commands or run them."""
    if args.remove:
        if args.instance:
            config_of(args.instance)  # refuses an impossible name
        return _remove(args.instance, args.prefix, dry_run=args.dry_run)
    _check_prefix(args)
    installation = _installation(args)
    files = {args.prefix / target: text for target, text in render(installation)}
    ours = (args.prefix / drop_ins_of(args.instance) / name for name in OUR_DROP_INS)
    stale = [path for path in ours if path not in files]
    stale = [path for path in stale if path.exists()]
    if args.dry_run:
        print("\n".join(f"### {target}\n{text}" for target, text in files.items()))
        _print_removed(stale)
        return 0
    for target, text in files.items():
        _write(target, text)
        print(f"wrote {target}")
    for path in stale:
        _unlink(path, "run it as root, or with --prefix")
        print(f"removed {path}, which does not apply any more")
    for complaint in (*_complaints(installation), *_list_left(installation, args.prefix)):
        print(f"hotreload: {complaint}", file=sys.stderr)
    return _go_on(_next_steps(installation), enable=args.enable)


def _check_prefix(args: argparse.Namespace) -> None:
    if args.enable and not args.dry_run and args.prefix.resolve() != Path("/"):
        raise Misused(
            "--enable runs systemctl on this machine, and --prefix writes for another place: "
            "give one of them"
        )


def _installation(args: argparse.Namespace) -> Installation:
    command = args.exec or Path(sys.executable).with_name("hotreload")
    if not os.access(command, os.X_OK):
        raise ConfigError(f"{command} is no command; name the one to start with --exec")
    config = config_of(args.instance) if args.instance else args.config or DEFAULT_CONFIG
    return Installation(
        command.absolute(),
        config.absolute(),
        args.user,
        machine.accelerators(),
        (Path(sys.prefix), Path(sys.base_prefix), Path(__file__)),
        args.instance,
        _memory(config, args.user) if args.limit_memory else None,
    )


def _memory(config: Path, user: str) -> MemoryLimits:
    """Return the limits that doctor computes; ConfigError if it cannot."""
    who = machine.user_called(user) or machine.stranger(user)
    limits = memory_limits(
        Facts(load(config, (), {}, FEATURES).settings, who, machine.accelerators())
    )
    if isinstance(limits, str):
        raise ConfigError(f"--limit-memory: no limit can be reckoned: {limits}")
    return limits


def _complaints(installation: Installation) -> Iterator[str]:
    """Yield each fault that will keep the service from starting, or make it slow."""
    name, settings = installation.user, installation.settings
    user = machine.user_called(name) or machine.stranger(name)
    for path in (installation.command.resolve(), Path(sys.executable).resolve()):
        if not user.may(path, os.R_OK | os.X_OK):
            yield f"{name} may not run {path}: a folder above it is closed; install beneath /opt"
            break
    if not installation.config.exists():
        yield f"{installation.config} is not there; `hotreload check-config --defaults` prints one"
    if installation.instance and settings.get("metrics", "address") is None:
        yield "[metrics] address is not set: each daemon of a host needs one of its own, or ''"
    if settings.is_for_cpu:
        return
    if not installation.devices:
        nodes = "/dev/accel*, /dev/vfio/*, /dev/nvidia*"
        yield f"no accelerator is here ({nodes}): the service will use the CPU"
    for node in machine.unknown_groups(installation.devices):
        yield f"{node}: the maker of this device is unknown; it is taken for an accelerator"


def _list_left(installation: Installation, prefix: Path) -> Iterator[str]:
    """Yield a warning of the socket unit of a host that now follows; it may still be in use."""
    socket = f"{installation.name}.socket"
    file = prefix / UNITS_FOLDER / socket
    if socket not in installation.units and file.exists():
        words = "any client would start a daemon that follows rank 0"
        yield f"{file} is left: {words}; systemctl disable --now {socket}, and remove it"


def _write(path: Path, text: str) -> None:
    """Write a file in one rename: systemd may read it at any moment."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, text.encode())
        path.chmod(0o644)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written: {error.strerror}; run it as root, or with --prefix"
        ) from error


def _next_steps(installation: Installation) -> list[list[str]]:
    steps = [["systemd-sysusers"], ["systemd-tmpfiles", "--create"]]
    owner = installation.user
    for folder in installation.own_folders:
        steps.append(["install", "-d", "-m", "0750", "-o", owner, "-g", owner, str(folder)])
    start = ["systemctl", "enable", "--now", *installation.units]
    return [*steps, ["systemctl", "daemon-reload"], start]


def _go_on(steps: Sequence[Sequence[str]], *, enable: bool) -> int:
    if not enable:
        print("\nthen, as root:")
        for step in steps:
            print(f"  {shlex.join(step)}")
        print("\n`hotreload doctor` says what is missing before the start.")
        return 0
    return 0 if all(map(_ran, steps)) else 1


# --- --remove: takes back what was written, and nothing else ------------------------------------


def _remove(instance: str | None, prefix: Path, *, dry_run: bool) -> int:
    """Stop the units and remove their files; settings, keys, state and the user stay."""
    files = [path for path in _list_written(instance, prefix) if path.exists()]
    if dry_run:
        _print_removed(files)
        return 0
    runs_here = prefix.resolve() == Path("/") and BOOTED.is_dir()
    name = name_units(instance)
    units = [f"{name}.{kind}" for kind in KINDS_OF_UNITS if _file(instance, kind, prefix).exists()]
    if runs_here and units and not _ran(["systemctl", "disable", "--now", *units]):
        return 1
    for path in files:
        _unlink(path, "run it as root")
        print(f"removed {path}")
    with suppress(OSError):  # it does not exist, or has drop-ins of the operator
        (prefix / drop_ins_of(instance)).rmdir()
    if runs_here and files and not _ran(["systemctl", "daemon-reload"]):
        return 1
    kept = "settings, keys, state and the service's user stay as they are"
    print(kept if files else f"install-unit wrote nothing here for {name}.service")
    return 0


def _list_written(instance: str | None, prefix: Path) -> Iterator[Path]:
    """Yield the files of this service alone, and the shared files that no other instance needs."""
    yield from (prefix / drop_ins_of(instance) / name for name in OUR_DROP_INS)
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


def _file(instance: str | None, kind: str, prefix: Path) -> Path:
    """Return the unit's file, which all instances share."""
    return prefix / UNITS_FOLDER / f"hotreload{'@' if instance else ''}.{kind}"


def _print_removed(files: Sequence[Path]) -> None:
    print("".join(f"### {path}\n# would be removed\n" for path in files), end="")


def _ran(step: Sequence[str]) -> bool:
    print(f"run {shlex.join(step)}", flush=True)
    code = subprocess.run(step, check=False).returncode
    if code:
        print(f"hotreload: {step[0]} failed with exit code {code}", file=sys.stderr)
    return code == 0


def _unlink(path: Path, todo: str) -> None:
    try:
        path.unlink()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be removed: {error.strerror}; {todo}") from error
