"""Names of sockets, of usual places, and of a hub's repositories."""

import re
from pathlib import Path

LONGEST_SOCKET_PATH = 107
"""Bytes that the path of a unix socket may have; the kernel takes no more."""
LOOKING = ".look"
"""The suffix of a second socket, beside one of systemd. While the daemon boots, status requests are
answered there, and requests on the other one wait."""
DEFAULT_BRANCH = "main"
DEFAULT_CONFIG = Path("/etc/hotreload/hotreload.toml")
DEFAULT_SOCKET = Path("/run/hotreload/hotreload.sock")
DEFAULT_STATE = Path("/var/lib/hotreload")
_NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(\S+))?", re.ASCII)


def names_a_repo(text: str) -> bool:
    """True if this is `org/name` or `org/name@revision`, and neither a folder nor in a folder."""
    path = Path(text)
    return bool(_NAME.fullmatch(text)) and not path.exists() and not path.parent.exists()


def how_to_have(text: str) -> str:
    """Advice on how to get a repository's folder, to put behind a fault; empty if it names none."""
    if not names_a_repo(text):
        return ""
    repo, revision = _NAME.fullmatch(text).groups()  # type: ignore[union-attr]
    which = f"{repo!r}, revision={revision!r}" if revision else repr(repo)
    return (
        f"; to have a repository of the hub in one, download it, and give what "
        f"huggingface_hub.snapshot_download({which}) returns"
    )
