"""The units of an engine over several hosts: the parts that rank 0 or a follower alone has."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hotreload.cli.ops import unit_words

RUN = Path("/run/hotreload")

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
"""


def rank_of(settings: dict[str, Any]) -> int | None:
    """Return which of several hosts the settings are for; None where there is one."""
    return _number(settings, "node_rank", 0) if _number(settings, "nnodes", 1) > 1 else None


def follows(settings: dict[str, Any]) -> bool:
    """True if another host leads this one."""
    return bool(rank_of(settings))


def drop_in(
    settings: dict[str, Any], command: Path, config: Path, socket: Path, secret: Path | None
) -> str:
    """Return the lines of the service that depend on the rank."""
    return _of_rank(settings, command, config, socket) + "".join(_credential(secret))


def _of_rank(settings: dict[str, Any], command: Path, config: Path, socket: Path) -> str:
    if not follows(settings):
        return LEADS
    return FOLLOWS.format(
        rank=rank_of(settings),
        hosts=_number(settings, "nnodes", 1),
        command=unit_words.command(command),
        config=unit_words.argument(config),
    ) + "".join(_folder_of(socket))


def _credential(secret: Path | None) -> Iterator[str]:
    """The secret may be root's alone: systemd reads it, and the daemon alone sees the copy."""
    if secret is not None:
        name, path = unit_words.credential(secret.name), unit_words.rest_of_line(secret)
        yield f"LoadCredential={name}:{path}\n"


def without_socket(text: str) -> str:
    """Return the text of the service without its socket: a drop-in can take no dependency back."""
    text = re.sub(r"(?m)^Requires=hotreload\.socket\n", "", text)
    return re.sub(r"(?m)^(After=)hotreload\.socket ", r"\1", text)


def _folder_of(socket: Path) -> Iterator[str]:
    """The daemon makes the socket itself here."""
    if socket.parent == RUN:
        yield f"RuntimeDirectory={RUN.name}\n"
    else:
        yield f"ReadWritePaths={unit_words.word(socket.parent)}\n"


def _number(settings: dict[str, Any], key: str, default: int) -> int:
    table = settings.get("engine")
    value = table.get(key, default) if isinstance(table, dict) else default
    return value if isinstance(value, int) else default
