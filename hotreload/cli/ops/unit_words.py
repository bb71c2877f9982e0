"""Writes paths and names so that systemd reads them back; each kind of line has its own escapes.

`%` begins a specifier everywhere, `$` a variable in commands, and spaces part words.
"""

import re
from pathlib import Path

from hotreload.errors import ConfigError

_PLAIN = re.compile(r"[A-Za-z0-9_./@:+,=~-]+")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*[$]?")
_UNHEARD_OF = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, and bytes that are not text."""
_NO_COMMAND = re.compile(r"[\"'\\]")
"""systemd starts no command whose path has one of these characters; a shell does."""
_BY_SHELL = """/bin/sh -c 'exec "$$0" "$$@"'"""
INSTANCE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""A name for one of several daemons on a host: it is part of paths and of names of units."""
_ID = re.compile(r"[ -9;-~]+")


def word(path: Path) -> str:
    """Write one of the words of a list, such as ReadWritePaths=."""
    text = _writable(path)
    if _PLAIN.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def command(path: Path) -> str:
    """Write the first word of a command line, where `$` stands for itself."""
    return f"{_BY_SHELL} {argument(path)}" if _NO_COMMAND.search(str(path)) else word(path)


def argument(path: Path) -> str:
    """Write one of the words after a command, where `$` would begin a variable."""
    return word(path).replace("$", "$$")


def rest_of_line(path: Path) -> str:
    """Write the whole value of a line such as ListenStream=, which knows no quotes."""
    text = _writable(path)
    if text.endswith(("\\", " ")):
        raise ConfigError(f"{path}: ends in a character that no unit can hold there; rename it")
    return text.replace("%", "%%")


def pattern(path: Path) -> str:
    """Write a path in a line of tmpfiles.d that takes patterns: their characters are escaped."""
    return word(Path(re.sub(r"([\\*?\[\]{}])", r"\\\1", _writable(path))))


def credential(name: str) -> str:
    """Write the name of a credential, before the colon of LoadCredential=."""
    if not _ID.fullmatch(name):
        raise ConfigError(f"{name!r} can name no credential of systemd's; rename that file")
    return name.replace("\\", "\\\\").replace("%", "%%")


def credential_name(written: str) -> str:
    """Undo `credential`: the name that was written this way."""
    return written.replace("%%", "%").replace("\\\\", "\\")


def user(name: str) -> str:
    """Write the name of a user or group."""
    if not _USER.fullmatch(name):
        raise ConfigError(f"{name!r} is no name of a user; give another with --user")
    return name


def _writable(path: Path) -> str:
    text = str(path)
    if _UNHEARD_OF.search(text):
        raise ConfigError(f"{text!r} has characters that no unit can hold; rename it")
    return text
