"""Secrets from files or systemd credentials. They are never part of a setting or a message."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

from hotreload.errors import ConfigError
from hotreload.server_limits import KeyTerms

KEYS, ADMIN_KEYS = "[server] api_keys_file", "[server] admin_keys_file"
TOKEN = "[source] token_file"
"""Settings that name files which are read again while the daemon runs."""

SHORTEST_KEY = 16
"""The fewest characters of a key: a client may guess without limit."""
LONGEST_KEY_NAME = SHORTEST_KEY - 1
"""The most characters of a key's name: a key that stands in its place is refused, not logged."""
_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{LONGEST_KEY_NAME}}}")
_LIMIT = re.compile(r"(requests|tokens_per_minute)=([1-9]\d{0,11})")
LIMITS = ("requests=", "tokens_per_minute=")
FORM_OF_A_KEY = (
    "must be one key of printable ASCII; before it a name of up to "
    f"{LONGEST_KEY_NAME} letters, digits and ._-, after it requests=8 or tokens_per_minute=20000, "
    "or a comment after #"
)

SHORTEST_JOIN_SECRET = 32
"""A shorter secret can be guessed from what it signs, without asking anybody."""


def read_secret(file: Path, setting: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return what the file holds, or a systemd credential of its name; ConfigError if neither."""
    place = _place_of(file, environ)
    text = _text_in(place, setting).strip()
    if not _is_one_word(text):
        raise ConfigError(f"{setting}: {place}: must hold one word, the secret")
    return text


def read_join_secret(
    file: Path, environ: Mapping[str, str] = os.environ, setting: str = "[engine] join_secret_file"
) -> str:
    """Return what all hosts of one engine know; ConfigError if others may know it, or guess it."""
    place = _place_of(file, environ)
    secret = read_secret(file, setting, environ)
    # systemd alone decides who may read a credential, and its mode does not tell.
    if place == file and file.stat().st_mode & 0o077:
        raise ConfigError(f"{setting}: {file}: others may read it: chmod 600 {file}")
    if len(secret) < SHORTEST_JOIN_SECRET:
        words = f"must have {SHORTEST_JOIN_SECRET} characters or more"
        raise ConfigError(f"{setting}: {place}: {words}; `openssl rand -hex 32` makes one")
    return secret


def read_keys(
    file: Path, setting: str, environ: Mapping[str, str] = os.environ
) -> Mapping[str, KeyTerms]:
    """Return the keys in a file, one a line, with their names and limits; `#` begins a comment.

    ConfigError names the line at fault, never what stands in it.
    """
    place = _place_of(file, environ)
    keys, by_name = dict[str, KeyTerms](), dict[str, KeyTerms]()
    for number, line in enumerate(_text_in(place, setting).splitlines(), 1):
        if not (words := list(takewhile(lambda word: word[0] != "#", line.split()))):
            continue
        try:
            key, terms = _read_key(words)
            if terms.name and by_name.setdefault(terms.name, terms) != terms:
                raise ConfigError("has other limits than an earlier key of the same name")
            if keys.setdefault(key, terms) != terms:
                raise ConfigError("is an earlier key under another name")
        except ConfigError as fault:
            raise ConfigError(f"{setting}: {place}: line {number}: {fault}") from None
    if not keys:
        raise ConfigError(f"{setting}: {place}: holds no key; `openssl rand -hex 32` makes one")
    return keys


def _read_key(words: Sequence[str]) -> tuple[str, KeyTerms]:
    """Return the key of a line, and its terms."""
    has_name = len(words) > 1 and not words[1].startswith(LIMITS)
    name, (key, *limits) = (words[0], words[1:]) if has_name else ("", words)
    found = [_LIMIT.fullmatch(limit) for limit in limits]
    if not (_is_one_word(key) and all(found) and (not has_name or _NAME.fullmatch(name))):
        raise ConfigError(FORM_OF_A_KEY)
    if len(key) < SHORTEST_KEY:
        why = f"is shorter than {SHORTEST_KEY} characters; `openssl rand -hex 32` makes one"
        raise ConfigError(why)
    if limits and not has_name:
        raise ConfigError("has limits and no name: write the name before the key")
    return key, KeyTerms(name, **{limit[1]: int(limit[2]) for limit in found if limit})


class RenewedSecret:
    """A secret that is read again each time; while its file cannot be read, the last one counts."""

    def __init__(self, read: Callable[[], str]) -> None:
        """ConfigError if it cannot be read now."""
        self._read = read
        self._last = read()

    def __call__(self) -> str:
        """Return the secret."""
        with suppress(ConfigError):
            self._last = self._read()
        return self._last


def _text_in(place: Path, setting: str) -> str:
    try:
        return place.read_text()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"{setting}: {place}: cannot be read: {why}") from None


def _is_one_word(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def _place_of(file: Path, environ: Mapping[str, str]) -> Path:
    folder = environ.get("CREDENTIALS_DIRECTORY")
    credential = Path(folder) / file.name if folder else None
    return credential if credential is not None and os.path.exists(credential) else file


def are_hidden(environ: Mapping[str, str] = os.environ) -> bool:
    """True if systemd passes credentials to the daemon alone, and not to this command beside it."""
    folder = environ.get("CREDENTIALS_DIRECTORY")
    return bool(folder) and not os.access(str(folder), os.R_OK | os.X_OK)
