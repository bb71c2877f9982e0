"""Secrets from files or systemd credentials. They are never part of a setting or a message."""

import os
from collections.abc import Mapping
from pathlib import Path

from hotreload.errors import ConfigError


def read_secret(file: Path, setting: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return what the file holds, or a systemd credential of its name; ConfigError if neither."""
    place = _place_of(file, environ)
    try:
        text = place.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"{setting}: {place}: cannot be read: {why}") from None
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError(f"{setting}: {place}: must hold one word, the secret")
    return text


def _place_of(file: Path, environ: Mapping[str, str]) -> Path:
    folder = environ.get("CREDENTIALS_DIRECTORY")
    credential = Path(folder) / file.name if folder else None
    return credential if credential is not None and credential.exists() else file
