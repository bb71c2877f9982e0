"""Fits the shipped files of systemd/ to an installation: its command, paths, user and devices.

The shipped units work unchanged; only the differences of this installation are replaced.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hotreload.cli.client.daemon_client import DEFAULT_CONFIG, DEFAULT_SOCKET
from hotreload.cli.ops import unit_hosts, unit_words
from hotreload.cli.ops.unit_words import INSTANCE
from hotreload.errors import ConfigError
from hotreload.facts.files import find_shipped
from hotreload.facts.names import LOOKING

SHIPPED_COMMAND = "/usr/local/bin/hotreload"
SHIPPED_CREDENTIAL = "LoadCredential=hf-token:/etc/hotreload/hf-token\n"
STATE = Path("/var/lib/hotreload")
CACHE = Path("/var/cache/hotreload")
SECRETS = (
    ("source", "token_file"),
    ("source", "webhook"),
    ("server", "api_keys_file"),
    ("server", "admin_keys_file"),
    ("engine", "join_secret_file"),
)
"""The settings whose file may be readable by root alone."""
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


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """Two limits of host memory: above the first the daemon is slowed down, then it is killed."""

    high: int
    most: int


@dataclass(frozen=True, slots=True)
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

    @property
    def name(self) -> str:
        """The name of the units, without the suffix."""
        return f"hotreload@{self.instance}" if self.instance else "hotreload"

    @property
    def drop_ins(self) -> Path:
        """The folder of the service's drop-ins."""
        return UNITS_FOLDER / f"{self.name}.service.d"

    @property
    def made_for_it(self) -> Sequence[Path]:
        """The folders that systemd makes for it."""
        return (STATE / self.instance if self.instance else STATE, CACHE)


def render(installation: Installation) -> Iterator[tuple[Path, str]]:
    """Yield each file to write: its path without the first slash, and its text."""
    settings = read_settings(installation.config)
    if installation.instance:
        _check_instance(installation, settings)
    for kind in _kinds(settings):
        name = f"hotreload{'@' if installation.instance else ''}.{kind}"
        text = _fit(_text(name), installation, settings)
        follows = unit_hosts.follows(settings)
        yield UNITS_FOLDER / name, unit_hosts.without_socket(text) if follows else text
    for kind in ("sysusers", "tmpfiles"):
        text = _fit(_text(f"hotreload.{kind}"), installation, settings)
        if kind == "tmpfiles" and installation.config.parent != DEFAULT_CONFIG.parent:
            text += f"z {unit_words.pattern(installation.config)} 0644 root root\n"
        yield Path(f"etc/{kind}.d/hotreload.conf"), text
    for name, text in _drop_ins(installation, settings):
        yield installation.drop_ins / name, text


def units_of(installation: Installation) -> list[str]:
    """Return the names of the units; a follower has no socket, since no client may start it."""
    kinds = _kinds(read_settings(installation.config))
    return [f"{installation.name}.{kind}" for kind in reversed(kinds)]


def _kinds(settings: dict[str, Any]) -> Sequence[str]:
    return ("service",) if unit_hosts.follows(settings) else ("service", "socket")


def _drop_ins(installation: Installation, settings: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if _setting(settings, "engine", "device") == "cpu":
        yield FOR_DEVICES, NO_ACCELERATOR
    elif installation.devices:
        yield FOR_DEVICES, _devices(installation.devices)
    if used := _list_used(installation.config, settings):
        yield (
            FOR_MOUNTS,
            f"{MOUNTS_BEGIN}RequiresMountsFor={' '.join(map(unit_words.word, used))}\n",
        )
    credentials = _credentials(installation.config, settings)
    keys = [credentials.pop(name) for name in FILES_OF_KEYS if name in credentials]
    join_secret = credentials.pop("join_secret_file", None)
    if _setting(settings, "source", "kind") == "huggingface":
        yield FOR_HUB, _hub(credentials.values())
    if keys:
        yield FOR_KEYS, KEYS_BEGIN + "".join(map(_credential_line, keys))
    if lines := list(_paths(installation, settings)):
        yield FOR_PATHS, PATHS_BEGIN + "".join(f"{line}\n" for line in lines)
    if limits := installation.memory:
        yield FOR_MEMORY, f"{MEMORY_BEGIN}MemoryHigh={limits.high}\nMemoryMax={limits.most}\n"
    if unit_hosts.rank_of(settings) is not None:
        config, socket = installation.config, _socket(installation, settings)
        yield (
            FOR_HOSTS,
            unit_hosts.drop_in(settings, installation.command, config, socket, join_secret),
        )


def config_of(instance: str) -> Path:
    """Return the path of an instance's settings; ConfigError for an impossible name."""
    if not INSTANCE.fullmatch(instance):
        raise ConfigError(f"{instance!r} can name no instance: use letters, digits, _ . and -")
    return DEFAULT_CONFIG.with_name(f"{instance}.toml")


def _check_instance(installation: Installation, settings: dict[str, Any]) -> None:
    """ConfigError for settings that two daemons of a host would share, or that systemd lacks."""
    config, instance = installation.config, installation.instance
    if unit_hosts.follows(settings):
        why = "the template of all instances has a socket, and a follower must have none"
        raise ConfigError(f"{config}: no instance can follow another host: {why}")
    socket, state = (f"/run/hotreload/{instance}.sock", STATE / str(instance))
    if _place(config, settings, "server", "socket") != Path(socket):
        raise ConfigError(f"{config}: [server] socket must be {socket!r} for this instance")
    if _place(config, settings, "state", "directory") in (None, STATE):
        raise ConfigError(
            f"{config}: [state] directory must be one of its own for this instance, such as "
            f"{str(state)!r}"
        )


def read_settings(config: Path) -> dict[str, Any]:
    """Return the settings file's content; empty if there is no file yet."""
    try:
        return tomllib.loads(config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{config}: cannot be read: {error}") from error


def own_folders(installation: Installation) -> list[Path]:
    """Return the folders for state and downloads that systemd does not make for it."""
    return _own_folders(installation, read_settings(installation.config))


def wants_accelerator(installation: Installation) -> bool:
    """Return whether the settings let the engine use an accelerator."""
    return _setting(read_settings(installation.config), "engine", "device") != "cpu"


def has_metrics_address(installation: Installation) -> bool:
    """Return whether the settings have [metrics] address, be it empty."""
    return "address" in read_settings(installation.config).get("metrics", {})


def _own_folders(installation: Installation, settings: dict[str, Any]) -> list[Path]:
    named = (("state", "directory"), ("source", "cache"))
    found = (_place(installation.config, settings, *name) for name in named)
    made = installation.made_for_it
    return [path for path in found if path and not _any_in([path / "x"], made)]


def _socket(installation: Installation, settings: dict[str, Any]) -> Path:
    return _place(installation.config, settings, "server", "socket") or DEFAULT_SOCKET


def _list_used(config: Path, settings: dict[str, Any]) -> list[Path]:
    """Return the folders that the settings name, each once: first those to read, then to write."""
    named = (("engine", "model"), ("source", "path"), ("source", "cache"), ("state", "directory"))
    found = (_place(config, settings, *name) for name in named)
    roots = (_at(config, root) for root in _list_texts(settings, "server", "update_roots"))
    return list(dict.fromkeys(path for path in (*found, *roots) if path))


def _text(name: str) -> str:
    return (find_shipped("systemd") / name).read_text(encoding="utf-8")


def _fit(text: str, installation: Installation, settings: dict[str, Any]) -> str:
    user, command = unit_words.user(installation.user), unit_words.command(installation.command)
    socket = _socket(installation, settings)
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


def _credentials(config: Path, settings: dict[str, Any]) -> dict[str, Path]:
    """Return each secret's file by its setting; the file's name is the credential's name."""
    found: dict[str, Path] = {}
    for section, key in SECRETS:
        path = _place(config, settings, section, key)
        if path is None:
            continue
        other = next((each for each in found.values() if each.name == path.name), path)
        if other != path:
            raise ConfigError(f"[{section}] {key}: {path} has the name of {other}; rename it")
        found[key] = path
    return found


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


def _paths(installation: Installation, settings: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that open folders to the daemon that the sandbox would hide or protect."""
    config = installation.config
    used = [installation.command, config, *installation.code, *_list_used(config, settings)]
    if _any_in(used, HOMES):
        yield "ProtectHome=read-only"
    if _any_in(used, TEMPORARY):
        yield "PrivateTmp=no"
    for folder in _own_folders(installation, settings):
        yield f"ReadWritePaths={unit_words.word(folder)}"


def _any_in(paths: Sequence[Path], folders: Sequence[Path]) -> bool:
    return any(folder in path.parents for path in paths for folder in folders)


def _place(config: Path, settings: dict[str, Any], section: str, key: str) -> Path | None:
    """Return a path of the settings; a relative one starts at the folder of the settings."""
    value = _setting(settings, section, key)
    return _at(config, value) if value else None


def _at(config: Path, value: str) -> Path:
    return config.absolute().parent / Path(value).expanduser()


def _list_texts(settings: dict[str, Any], section: str, key: str) -> list[str]:
    table = settings.get(section)
    values = table.get(key) if isinstance(table, dict) else None
    return [each for each in values if isinstance(each, str)] if isinstance(values, list) else []


def _setting(settings: dict[str, Any], section: str, key: str) -> str | None:
    table = settings.get(section)
    value = table.get(key) if isinstance(table, dict) else None
    return value if isinstance(value, str) else None
