"""The groups of this machine, by name or number."""

import grp

from hotreload.errors import ConfigError


def group_id(group: str | int, setting: str) -> int:
    """The number of a group; ConfigError names the setting when there is none."""
    if isinstance(group, int) or group.isdigit():
        return int(group)
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise ConfigError(f"{setting}: there is no group {group!r} on this machine") from None
