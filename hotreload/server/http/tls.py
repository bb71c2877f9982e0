"""TLS on the TCP port: a certificate and its key, read again when their files change."""

import hashlib
import logging
import ssl
from pathlib import Path

from hotreload.errors import ConfigError

log = logging.getLogger("hotreload.server")

TLS = "[server] tls_cert, tls_key"
"""The settings that name the files, for messages."""


class TlsPair:
    """A certificate with its chain and its key; each new connection gets the last good pair."""

    def __init__(self, cert: Path, key: Path) -> None:
        """ConfigError if the files are no pair."""
        self._files = cert, key
        self._digest = self._read()
        self.context = self._last = self._load()
        """The server listens with it; every handshake goes on with the last pair."""
        self.context.sni_callback = self._choose

    def read_again(self) -> None:
        """Take what the files hold now; ConfigError if that is no pair, and the last one stays."""
        digest = self._read()
        if digest != self._digest:
            self._last, self._digest = self._load(), digest
            log.info("tls.changed", extra={"certificate": str(self._files[0])})

    def _choose(self, connection: ssl.SSLObject, name: str | None, first: object) -> None:
        """Give a connection the last pair; OpenSSL calls it early in each handshake."""
        connection.context = self._last

    def _read(self) -> bytes:
        digest = hashlib.sha256()
        for file in self._files:
            try:
                digest.update(file.read_bytes())
            except OSError as error:
                raise ConfigError(f"{TLS}: {file} cannot be read: {error.strerror}") from None
        return digest.digest()

    def _load(self) -> ssl.SSLContext:
        cert, key = self._files
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.set_alpn_protocols(["http/1.1"])
        try:
            context.load_cert_chain(cert, key, password=self._refuse_password)
        except OSError as error:
            why = getattr(error, "reason", None) or error.strerror
            words = (
                f"{key} is not the key of {cert}"
                if why == "KEY_VALUES_MISMATCH"
                else f"{cert} and {key} are no certificate and key in PEM ({why})"
            )
            raise ConfigError(f"{TLS}: {words}") from None
        return context

    def _refuse_password(self) -> str:
        """Raise ConfigError: OpenSSL would ask for the password on the terminal."""
        raise ConfigError(f"{TLS}: {self._files[1]} is encrypted: write it without a password")
