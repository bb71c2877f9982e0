"""Signs a POST as Standard Webhooks has it: by HMAC-SHA256 over id, time and body."""

import base64
import binascii
import hmac
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hotreload.errors import ConfigError
from hotreload.settings.credentials import read_secret

SETTING = "[[notify]] secret_file"
PREFIX = "whsec_"
"""The prefix of a key in base64, as Standard Webhooks writes a secret."""


def read_key(file: Path) -> bytes:
    """Return the key in a file: its word, or what `whsec_` says in base64; ConfigError if bad."""
    secret = read_secret(file, SETTING)
    if not secret.startswith(PREFIX):
        return secret.encode()
    with suppress(binascii.Error):
        if key := base64.b64decode(secret.removeprefix(PREFIX), validate=True):
            return key
    raise ConfigError(f"{SETTING}: {file}: must be base64 behind {PREFIX}")


def sign(key: bytes, id: str, timestamp: int, body: bytes) -> Mapping[str, str]:
    """Return the header that signs the body with its id and time."""
    digest = hmac.digest(key, f"{id}.{timestamp}.".encode() + body, "sha256")
    return {"webhook-signature": f"v1,{base64.b64encode(digest).decode()}"}
