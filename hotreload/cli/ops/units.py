"""Fits the shipped files of systemd/ to an installation: its command, paths, user and devices.

The shipped units work unchanged; only the differences of this installation are replaced.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from hotreload.cli.ops import unit_words
from hotreload.cli.ops.unit_settings import UnitSettings
from hotreload.cli.ops.unit_words import INSTANCE
from hotreload.errors import ConfigError
from hotreload.facts.files import find_shipped
from hotreload.facts.names import DEFAULT_CONFIG, DEFAULT_SOCKET, DEFAULT_STATE, LOOKING

SHIPPED_COMMAND = "/usr/local/bin/hotreload"
SHIPPED_CREDENTIAL = "LoadCredential=hf-token:/etc/hotreload/hf-token\n"
CACHE = Path("/var/cache/hotreload")
RUN = Path("/run/hotreload")
FILES_OF_KEYS = ("api_keys_file", "admin_keys_file")
UNITS_FOLDER = Path("etc/systemd/system")
OUR_DROP_INS = FOR_DEVICES, FOR_MOUNTS, FOR_HUB, FOR_KEYS, FOR_PATHS, FOR_MEMORY, FOR_HOSTS = (
    "10-devices.conf",
    "15-mounts.conf",
    "20-hub.conf",
    "25-api-keys.conf",
    "30-paths.conf",
    "40-memory.conf",
    "50-hosts.conf",
)
"""The drop-ins that not every installation needs; unneeded ones are removed."""
HOMES = tuple(map(Path, ("/home", "/root", "/run/user")))
TEMPORARY = tuple(map(Path, ("/tmp", "/var/tmp")))

NO_ACCELERATOR = """\
# [engine] device = "cpu": JAX is to leave the accelerators of this machine alone.
[Service]
Environment=JAX_PLATFORMS=cpu
"""
SECRETS_BEGIN = """\
# For [source] kind = "huggingface": systemd reads each secret as root, and the daemon alone sees
# the copy of it (it looks for a credential of the file's name).
"""
KEYS_BEGIN = """\
# [server] api_keys_file, admin_keys_file: systemd reads them as root, and the daemon alone sees the
# copies of them. Keys that change count from a restart on: systemctl restart.
[Service]
"""
PATHS_BEGIN = """\
# Folders of this installation that the service's sandbox must not hide or protect.
[Service]
"""


MOUNTS_BEGIN = """\
# What the daemon reads and writes is mounted before it starts. What systemd mounts nothing for, it
# waits for by itself.
[Unit]
"""
MEMORY_BEGIN = """\
# What `hotreload doctor` reckons for these weights; a larger model needs `hotreload install-unit
# --limit-memory` again.
[Service]
"""


LEADS = """\
# The other hosts are met over the network, so it must be up.
[Unit]
Wants=network-online.target
After=network-online.target

[Service]
# A program of the daemon's outlives it until the other hosts have heard of its end; it does not
# mind SIGTERM, and stays for 20 s at most.
KillMode=control-group
"""
FOLLOWS = """\
# This host follows: rank 0 serves, and says when to reload. It has no hotreload.socket, for no
# client is to start it. It ends with 70 when rank 0 leaves, and comes back for ever to meet it.
[Unit]
Description=LLM engine with hot-reloaded weights (hotreload), rank {rank} of {hosts}: follows rank 0
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Restart=always
RestartSec=5
ExecReload=
ExecReload={command} check-config --quiet {config}
ExecReload=/bin/kill -HUP $MAINPID
{folder}
"""


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Two limits of host memory: above the first the daemon is slowed down, then it is killed."""

    high: int
    most: int


@dataclass(frozen=True)
class Installation:
    """The facts about an installation that the units must name."""

    command: Path
    config: Path
    user: str
    devices: Sequence[Path]
    code: Sequence[Path] = ()
    """The folders of the interpreter and its packages."""
    instance: str | None = None
    """The name of one of several daemons on a host; None for a single daemon."""
    memory: MemoryLimits | None = None
    """The limits of memory to set, if any."""

    @cached_property
    def settings(self) -> UnitSettings:
        """The settings that the service runs with."""
        return UnitSettings(self.config)

    @property
    def name(self) -> str:
        """The name of the units, without the suffix."""
        return name_units(self.instance)

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of its units; a follower has no socket, since no client may start it."""
        return ("service",) if self.settings.follows else ("service", "socket")

    @property
    def units(self) -> list[str]:
        """The names of the units, as systemd starts them."""
        return [f"{self.name}.{kind}" for kind in reversed(self.kinds)]

    @property
    def own_folders(self) -> list[Path]:
        """The folders for state and downloads that systemd does not make for it."""
        made = (DEFAULT_STATE / self.instance if self.instance else DEFAULT_STATE, CACHE)
        named = (("state", "directory"), ("source", "cache"))
        found = (self.settings.path(*name) for name in named)
        return [path for path in found if path and not _any_in([path / "x"], made)]


def name_units(instance: str | None) -> str:
    """Return the name of the units of an instance, without the suffix."""
    return f"hotreload@{instance}" if instance else "hotreload"


def drop_ins_of(instance: str | None) -> Path:
    """Return the folder of the service's drop-ins."""
    return UNITS_FOLDER / f"{name_units(instance)}.service.d"


def render(installation: Installation) -> Iterator[tuple[Path, str]]:
    """Yield each file to write: its path without the first slash, and its text."""
    if installation.instance:
        _check_instance(installation)
    for kind in installation.kinds:
        name = f"hotreload{'@' if installation.instance else ''}.{kind}"
        text = _fit(_text(name), installation)
        follows = installation.settings.follows
        yield UNITS_FOLDER / name, _without_socket(text) if follows else text
    for kind in ("sysusers", "tmpfiles"):
        text = _fit(_text(f"hotreload.{kind}"), installation)
        if kind == "tmpfiles" and installation.config.parent != DEFAULT_CONFIG.parent:
            text += f"z {unit_words.pattern(installation.config)} 0644 root root\n"
        yield Path(f"etc/{kind}.d/hotreload.conf"), text
    for name, text in _drop_ins(installation):
        yield drop_ins_of(installation.instance) / name, text


def _drop_ins(installation: Installation) -> Iterator[tuple[str, str]]:
    settings = installation.settings
    if settings.is_for_cpu:
        yield FOR_DEVICES, NO_ACCELERATOR
    elif installation.devices:
        yield FOR_DEVICES, _devices(installation.devices)
    if used := settings.list_used():
        folders = " ".join(map(unit_words.word, used))
        yield FOR_MOUNTS, f"{MOUNTS_BEGIN}RequiresMountsFor={folders}\n"
    credentials = settings.credentials()
    keys = [credentials.pop(name) for name in FILES_OF_KEYS if name in credentials]
    join_secret = credentials.pop("join_secret_file", None)
    if settings.get("source", "kind") == "huggingface":
        yield FOR_HUB, _hub(credentials.values())
    if keys:
        yield FOR_KEYS, KEYS_BEGIN + "".join(map(_credential_line, keys))
    if lines := list(_paths(installation)):
        yield FOR_PATHS, PATHS_BEGIN + "".join(f"{line}\n" for line in lines)
    if limits := installation.memory:
        yield FOR_MEMORY, f"{MEMORY_BEGIN}MemoryHigh={limits.high}\nMemoryMax={limits.most}\n"
    if settings.rank is not None:
        # systemd reads the join secret as root, for the daemon.
        secret = "" if join_secret is None else _credential_line(join_secret)
        yield FOR_HOSTS, (_write_follower(installation) if settings.follows else LEADS) + secret


def config_of(instance: str) -> Path:
    """Return the path of an instance's settings; ConfigError for an impossible name."""
    if not INSTANCE.fullmatch(instance):
        raise ConfigError(f"{instance!r} can name no instance: use letters, digits, _ . and -")
    return DEFAULT_CONFIG.with_name(f"{instance}.toml")


def _check_instance(installation: Installation) -> None:
    """ConfigError for settings that two daemons of a host would share, or that systemd lacks."""
    settings, instance = installation.settings, installation.instance
    if settings.follows:
        why = "the template of all instances has a socket, and a follower must have none"
        raise ConfigError(f"{settings.file}: no instance can follow another host: {why}")
    socket, state = (f"/run/hotreload/{instance}.sock", DEFAULT_STATE / str(instance))
    if settings.path("server", "socket") != Path(socket):
        words = f"[server] socket must be {socket!r} for this instance"
        raise ConfigError(f"{settings.file}: {words}")
    if settings.path("state", "directory") in (None, DEFAULT_STATE):
        words = f"must be one of its own for this instance, such as {str(state)!r}"
        raise ConfigError(f"{settings.file}: [state] directory {words}")


def _text(name: str) -> str:
    return (find_shipped("systemd") / name).read_text(encoding="utf-8")


def _fit(text: str, installation: Installation) -> str:
    user, command = unit_words.user(installation.user), unit_words.command(installation.command)
    socket = installation.settings.socket
    config = unit_words.argument(installation.config)
    named = (
        (r"(?:User|Group|SocketGroup)=", "hotreload$", user),
        (r"u ", "hotreload ", f"{user} "),
        (r"Exec(?:Start|Reload)=", f"{SHIPPED_COMMAND} ", f"{command} "),
        (r"Exec.* --(?:config|quiet) ", f"{DEFAULT_CONFIG}$", config),
        (r"ListenStream=", f"{DEFAULT_SOCKET}(?=({LOOKING})?$)", unit_words.rest_of_line(socket)),
    )
    for before, there, here in named:
        text = re.sub(rf"(?m)^({before}){there}", partial(_followed_by, here), text)
    return text


def _followed_by(here: str, found: re.Match[str]) -> str:
    return found[1] + here


def _devices(nodes: Sequence[Path]) -> str:
    """Return the shipped drop-in for devices, with this machine's nodes for those of a TPU VM."""
    lines = _text("hotreload.service.d/10-devices.conf").splitlines()
    kept = [line for line in lines if not line.startswith("DeviceAllow=")]
    after = kept.index("[Service]") + 1
    kept[after:after] = [f"DeviceAllow={node} rw" for node in nodes]
    are_gpus = any(node.name.startswith("nvidia") for node in nodes)
    return "\n".join(kept).replace("tpu,cpu", "cuda,cpu" if are_gpus else "tpu,cpu") + "\n"


def _credential_line(path: Path) -> str:
    """Return the line that passes a file to the daemon as a credential."""
    name = unit_words.credential(path.name)
    return f"LoadCredential={name}:{unit_words.rest_of_line(path)}\n"


def _hub(secrets: Iterable[Path]) -> str:
    """Return the shipped drop-in for following a hub, with the secrets that are set."""
    _, _, text = _text("hotreload.service.d/20-hub.conf").partition("[Unit]")
    lines = "".join(map(_credential_line, dict.fromkeys(secrets)))
    if not lines:  # a public repo without a webhook
        return "[Unit]" + text.replace(f"\n[Service]\n{SHIPPED_CREDENTIAL}", "")
    return SECRETS_BEGIN + "[Unit]" + text.replace(SHIPPED_CREDENTIAL, lines)


def _paths(installation: Installation) -> Iterator[str]:
    """Yield the lines that open folders to the daemon that the sandbox would hide or protect."""
    named = installation.settings.list_used()
    used = [installation.command, installation.config, *installation.code, *named]
    if _any_in(used, HOMES):
        yield "ProtectHome=read-only"
    if _any_in(used, TEMPORARY):
        yield "PrivateTmp=no"
    for folder in installation.own_folders:
        yield f"ReadWritePaths={unit_words.word(folder)}"


def _any_in(paths: Sequence[Path], folders: Sequence[Path]) -> bool:
    return any(folder in path.parents for path in paths for folder in folders)


# --- rank 0 and the followers of one engine -----------------------------------------------------


def _write_follower(installation: Installation) -> str:
    """Return the lines of a follower's service; it makes its socket itself."""
    settings, folder = installation.settings, installation.settings.socket.parent
    opened = f"ReadWritePaths={unit_words.word(folder)}"
    return FOLLOWS.format(
        rank=settings.rank,
        hosts=settings.hosts,
        command=unit_words.command(installation.command),
        config=unit_words.argument(installation.config),
        folder=f"RuntimeDirectory={RUN.name}" if folder == RUN else opened,
    )


def _without_socket(text: str) -> str:
    """Return the service's text without its socket: no drop-in can remove a dependency."""
    text = re.sub(r"(?m)^Requires=hotreload\.socket\n", "", text)
    return re.sub(r"(?m)^(After=)hotreload\.socket ", r"\1", text)
