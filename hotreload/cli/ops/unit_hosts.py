"""The parts of the units that differ between rank 0 and a follower of one engine."""

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
    """Return the rank that the settings are for; None for an engine on one host."""
    return _number(settings, "node_rank", 0) if _number(settings, "nnodes", 1) > 1 else None


def follows(settings: dict[str, Any]) -> bool:
    """Return whether the settings are those of a follower."""
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
    """Return the line that passes the join secret on: systemd reads it as root, for the daemon."""
    if secret is not None:
        name, path = unit_words.credential(secret.name), unit_words.rest_of_line(secret)
        yield f"LoadCredential={name}:{path}\n"


def without_socket(text: str) -> str:
    """Return the service's text without its socket: no drop-in can remove a dependency."""
    text = re.sub(r"(?m)^Requires=hotreload\.socket\n", "", text)
    return re.sub(r"(?m)^(After=)hotreload\.socket ", r"\1", text)


def _folder_of(socket: Path) -> Iterator[str]:
    """Yield the line for the socket's folder: a follower makes the socket itself."""
    if socket.parent == RUN:
        yield f"RuntimeDirectory={RUN.name}\n"
    else:
        yield f"ReadWritePaths={unit_words.word(socket.parent)}\n"


def _number(settings: dict[str, Any], key: str, default: int) -> int:
    table = settings.get("engine")
    value = table.get(key, default) if isinstance(table, dict) else default
    return value if isinstance(value, int) else default
