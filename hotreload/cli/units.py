"""The files of systemd/ as an installation needs them: its command, paths, user and devices.

The shipped files are units that work as they are; what differs is replaced in their text.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hotreload
from hotreload.cli.client import DEFAULT_CONFIG, DEFAULT_SOCKET
from hotreload.errors import ConfigError

SHIPPED_COMMAND = "/usr/local/bin/hotreload"
SHIPPED_TOKEN = Path("/etc/hotreload/hf-token")
STATE = Path("/var/lib/hotreload")
TOKEN = ("source", "token_file")
UNITS = Path("etc/systemd/system")
DROP_INS = UNITS / "hotreload.service.d"
HOMES = tuple(map(Path, ("/home", "/root", "/run/user")))
TEMPORARY = tuple(map(Path, ("/tmp", "/var/tmp")))

PATHS_BEGIN = """\
# Where this installation keeps its things, as far as the service must be let at them.
[Service]
"""


@dataclass(frozen=True, slots=True)
class Installation:
    """What the units must name."""

    command: Path
    config: Path
    user: str
    devices: Sequence[Path]
    code: Sequence[Path] = ()
    """Folders the interpreter and its packages lie in."""


def shipped() -> Path:
    """The folder of the files as they are shipped: in the package, or beside it in a checkout."""
    package = Path(hotreload.__file__).parent
    inside = package / "systemd"
    return inside if inside.is_dir() else package.parent / "systemd"


def render(installation: Installation) -> Iterator[tuple[Path, str]]:
    """Yield each file to be written, its path without the first slash and its text."""
    settings = read_settings(installation.config)
    plain = ("hotreload.service", "hotreload.socket")
    for name in plain:
        yield UNITS / name, _fitted(_text(name), installation, settings)
    for kind in ("sysusers", "tmpfiles"):
        text = _fitted(_text(f"hotreload.{kind}"), installation, settings)
        yield Path(f"etc/{kind}.d/hotreload.conf"), text
    if installation.devices:
        yield DROP_INS / "10-devices.conf", _devices(installation.devices)
    if _setting(settings, "source", "kind") == "huggingface":
        yield DROP_INS / "20-hub.conf", _hub(_placed(installation.config, settings, *TOKEN))
    if lines := list(_paths(installation, settings)):
        yield DROP_INS / "30-paths.conf", PATHS_BEGIN + "".join(f"{line}\n" for line in lines)


def read_settings(config: Path) -> dict[str, Any]:
    """The settings' file as it stands; empty when there is none yet."""
    try:
        return tomllib.loads(config.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{config}: cannot be read: {error}") from error


def state_folder(installation: Installation) -> Path:
    """Where the daemon keeps its state."""
    settings = read_settings(installation.config)
    return _placed(installation.config, settings, "state", "directory") or STATE


def _text(name: str) -> str:
    return (shipped() / name).read_text(encoding="utf-8")


def _fitted(text: str, installation: Installation, settings: dict[str, Any]) -> str:
    user = installation.user
    socket = _placed(installation.config, settings, "server", "socket") or DEFAULT_SOCKET
    text = re.sub(r"(?m)^((?:User|Group|SocketGroup)=)hotreload$", rf"\g<1>{user}", text)
    text = re.sub(r"(?m)^u hotreload ", f"u {user} ", text)
    for there, here in (
        (SHIPPED_COMMAND, installation.command),
        (DEFAULT_CONFIG, installation.config),
        (DEFAULT_SOCKET, socket),
    ):
        text = text.replace(str(there), str(here))
    return text


def _devices(nodes: Sequence[Path]) -> str:
    """The shipped drop-in with the nodes of this machine in place of those of a TPU VM."""
    lines = _text("hotreload.service.d/10-devices.conf").splitlines()
    kept = [line for line in lines if not line.startswith("DeviceAllow=")]
    after = kept.index("[Service]") + 1
    kept[after:after] = [f"DeviceAllow={node} rw" for node in nodes]
    return "\n".join(kept) + "\n"


def _hub(token: Path | None) -> str:
    """The shipped drop-in for following a hub, with the token's file if there is one."""
    text = _text("hotreload.service.d/20-hub.conf")
    if token is None:  # a public repo, and no credential to pass
        return text.replace(
            f"\n[Service]\nLoadCredential={SHIPPED_TOKEN.name}:{SHIPPED_TOKEN}\n", ""
        )
    text = text.replace(str(SHIPPED_TOKEN), str(token))
    return text.replace(f"={SHIPPED_TOKEN.name}:", f"={token.name}:")


def _paths(installation: Installation, settings: dict[str, Any]) -> Iterator[str]:
    """Yield what lets the service at folders that the sandbox would hide or protect."""
    config = installation.config
    named = (("engine", "model"), ("source", "path"), ("state", "directory"))
    found = (_placed(config, settings, *name) for name in named)
    used = [installation.command, config, *installation.code, *(p for p in found if p)]
    if _any_in(used, HOMES):
        yield "ProtectHome=read-only"
    if _any_in(used, TEMPORARY):
        yield "PrivateTmp=no"
    state = _placed(config, settings, "state", "directory")
    if state is not None and state != STATE and STATE not in state.parents:
        yield f"ReadWritePaths={state}"


def _any_in(paths: Sequence[Path], folders: Sequence[Path]) -> bool:
    return any(folder in path.parents for path in paths for folder in folders)


def _placed(config: Path, settings: dict[str, Any], section: str, key: str) -> Path | None:
    """A path in the settings; a relative one starts at their file's folder."""
    value = _setting(settings, section, key)
    return config.absolute().parent / Path(value).expanduser() if value else None


def _setting(settings: dict[str, Any], section: str, key: str) -> str | None:
    table = settings.get(section)
    value = table.get(key) if isinstance(table, dict) else None
    return value if isinstance(value, str) else None
