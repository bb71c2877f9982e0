"""Escapes paths and names for systemd; each kind of line has its own escapes.

`%` begins a specifier everywhere, `$` a variable in commands, and spaces part words.
"""

import re
from pathlib import Path

from hotreload.errors import ConfigError

_PLAIN = re.compile(r"[A-Za-z0-9_./@:+,=~-]+")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*[$]?")
_UNHEARD_OF = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, and bytes that are no text."""
_NO_COMMAND = re.compile(r"[\"'\\]")
"""Characters that systemd forbids in the path of a command; a shell accepts them."""
_BY_SHELL = """/bin/sh -c 'exec "$$0" "$$@"'"""
INSTANCE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
"""A name for one of several daemons on a host: a part of paths and of units' names."""
_ID = re.compile(r"[ -9;-~]+")


def word(path: Path) -> str:
    """Return a word of a list, such as ReadWritePaths=, escaped."""
    text = _writable(path)
    if _PLAIN.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def command(path: Path) -> str:
    """Return the first word of a command line, escaped; `$` is an ordinary character there."""
    return f"{_BY_SHELL} {argument(path)}" if _NO_COMMAND.search(str(path)) else word(path)


def argument(path: Path) -> str:
    """Return a word after a command, escaped; `$` would begin a variable there."""
    return word(path).replace("$", "$$")


def rest_of_line(path: Path) -> str:
    """Return the whole value of a line such as ListenStream=, escaped; it has no quotes."""
    text = _writable(path)
    if text.endswith(("\\", " ")):
        raise ConfigError(f"{path}: ends in a character that no unit can hold there; rename it")
    return text.replace("%", "%%")


def pattern(path: Path) -> str:
    """Return a path for a line of tmpfiles.d, with the characters of patterns escaped."""
    return word(Path(re.sub(r"([\\*?\[\]{}])", r"\\\1", _writable(path))))


def credential(name: str) -> str:
    """Return the name of a credential, escaped for LoadCredential=."""
    if not _ID.fullmatch(name):
        raise ConfigError(f"{name!r} can name no credential of systemd's; rename that file")
    return name.replace("\\", "\\\\").replace("%", "%%")


def credential_name(written: str) -> str:
    """Return the name of a credential, unescaped."""
    return written.replace("%%", "%").replace("\\\\", "\\")


def user(name: str) -> str:
    """Return the name of a user or group, escaped."""
    if not _USER.fullmatch(name):
        raise ConfigError(f"{name!r} is no name of a user; give another with --user")
    return name


def _writable(path: Path) -> str:
    text = str(path)
    if _UNHEARD_OF.search(text):
        raise ConfigError(f"{text!r} has characters that no unit can hold; rename it")
    return text
