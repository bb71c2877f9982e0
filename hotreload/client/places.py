"""The places at which a daemon answers: its unix socket, or an address, with TLS or without."""

import errno
import http.client
import os
import socket
import ssl
import struct
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from urllib.parse import urlsplit

from hotreload.errors import ConfigError, Unreachable
from hotreload.facts.names import LOOKING

DIAL_SECONDS = 10.0
"""The longest wait for a connection to an address; a socket connects at once."""
STOPPED = ("T", "t")
"""The states of a process that a signal or a debugger has stopped."""
NAME_DIFFERS = (62, 64)
"""OpenSSL's codes of a certificate for another name, or another address."""
NOT_TRUSTED = (18, 19, 20, 21)
"""OpenSSL's codes of a certificate whose CA is not known."""


class DaemonPlace:
    """A place at which a daemon answers."""

    ways = ""
    """The options and variables that name another place."""

    def __init__(self, shown: str, named_by: str) -> None:
        """`shown` names the place in messages."""
        self._shown = shown
        self._named_by = named_by
        self.headers: dict[str, str] = {}

    def __str__(self) -> str:
        return self._shown

    def _unreachable(self, what: str, *, may_come: bool) -> Unreachable:
        origin = f" (from {self._named_by})" if self._named_by else ""
        other = f"\n  name another with {self.ways}" if self._named_by else ""
        words = f"cannot reach the daemon on {self}{origin}: {what}{other}"
        return Unreachable(words, may_come=may_come)

    def name_of(self, connection: http.client.HTTPConnection) -> str:
        """Return the name of the place that was connected to."""
        return str(getattr(connection, "path", self))

    def after_a_break(self) -> str:
        """Return a hint to put behind the words for a connection that broke."""
        return ""

    def refusal_hint(self, code: object) -> str:
        """Return what to change, behind the daemon's own words."""
        return ""


class SocketPlace(DaemonPlace):
    """The unix socket of a daemon on this machine."""

    ways = "--socket, --config or $HOTRELOAD_SOCKET"

    def __init__(self, path: Path, named_by: str) -> None:
        super().__init__(str(path), named_by)
        self.path = path

    @property
    def look_path(self) -> Path:
        """The socket that answers looks at once, where systemd holds the first."""
        return self.path.with_name(self.path.name + LOOKING)

    def connect(self, timeout: float | None, *, looks: bool) -> http.client.HTTPConnection:
        """Connect to the daemon; a look first tries the socket that answers at once."""
        if looks:
            with suppress(OSError):
                return _open(_SocketConnection(self.look_path, timeout))
        try:
            return _open(_SocketConnection(self.path, timeout))
        except OSError as error:
            raise self._no_answer(error) from error

    def _no_answer(self, error: OSError) -> Unreachable:
        no_socket = error.errno == errno.ECONNREFUSED and not self.path.is_socket()
        what = (
            "it is no socket"
            if no_socket
            else {
                errno.ENOENT: "there is no such socket; is `hotreload serve` running?",
                errno.ECONNREFUSED: "no process listens there now; start `hotreload serve` again",
                errno.EACCES: "you may not connect; ask for its group ([server] group)",
                errno.EAGAIN: "it takes no more connections; too many are waiting",
            }.get(error.errno or 0, str(error))
        )
        may_come = error.errno in (errno.ENOENT, errno.ECONNREFUSED) and not no_socket
        return self._unreachable(what, may_come=may_come)

    def why_silent(self, connection: http.client.HTTPConnection) -> str:
        """Say which process took the connection without answering, and what the user can do."""
        options = (socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        pid, _, _ = struct.unpack("3i", connection.sock.getsockopt(*options))
        name, state = _process(pid)
        if name == "systemd":
            return (
                "a daemon that systemd starts answers only once it serves: see systemctl status "
                "hotreload"
            )
        if state in STOPPED:
            return f"its process {pid} is stopped: kill -CONT {pid} has it go on"
        if not state:
            return "its process cannot be looked at; is it still there?"
        return f"its process {pid} is there, and hangs or is very busy: look at its log"


class UrlPlace(DaemonPlace):
    """The address of a daemon, http or https, and the key that is sent there."""

    ways = "--url or $HOTRELOAD_URL"

    def __init__(self, url: str, key: str | None, ca_file: Path | None, named_by: str) -> None:
        """ConfigError for a bad address, or a bad file of the CA."""
        try:
            parts = urlsplit(url)
            self._at = (parts.hostname or "", parts.port)
        except ValueError:
            raise no_address(url, named_by) from None
        beside = "@" in parts.netloc or parts.path.strip("/") or parts.query or parts.fragment
        if parts.scheme not in ("http", "https") or not parts.hostname or beside:
            raise no_address(url, named_by)
        super().__init__(f"{parts.scheme}://{parts.netloc}", named_by)
        if key is not None and not _is_key(key):  # http.client would show it in its error
            raise ConfigError(f"the key for {self} must be one word of printable ASCII")
        self._tls = _trust(ca_file) if parts.scheme == "https" else None
        if key is not None:
            self.headers = {"Authorization": f"Bearer {key}"}

    def connect(self, timeout: float | None, *, looks: bool) -> http.client.HTTPConnection:
        """Connect to the daemon; at an address there is no second socket for looks."""
        within = DIAL_SECONDS if timeout is None else min(timeout, DIAL_SECONDS)
        host, port = self._at
        connection = (
            http.client.HTTPConnection(host, port, timeout=within)
            if self._tls is None
            else http.client.HTTPSConnection(host, port, timeout=within, context=self._tls)
        )
        try:
            _open(connection)
        except OSError as error:
            what, may_come = self._why_unreachable(error, within), error.errno == errno.ECONNREFUSED
            raise self._unreachable(what, may_come=may_come) from error
        connection.sock.settimeout(timeout)
        return connection

    def _why_unreachable(self, error: OSError, within: float) -> str:
        if isinstance(error, ssl.SSLCertVerificationError):
            return _why_distrusted(error)
        if self._tls and isinstance(error, ssl.SSLError | ConnectionResetError):
            why = getattr(error, "reason", None) or error.strerror
            return f"it answers without TLS ({why}); write http://, or set [server] tls_cert"
        if isinstance(error, socket.gaierror):
            return f"its name is not known ({error.strerror})"
        if isinstance(error, TimeoutError):
            return f"no connection within {within:g} s; is the address right, and the way open?"
        if isinstance(error, ConnectionRefusedError):
            return "no process listens there; is the daemon running, and [server] tcp set?"
        return str(error)

    def why_silent(self, connection: http.client.HTTPConnection) -> str:
        """Say what the user can do."""
        return "it hangs or is very busy: look at its log"

    def after_a_break(self) -> str:
        """Return a hint to put behind the words for a connection that broke."""
        return "" if self._tls else "; if it has [server] tls_cert, write https://"

    def refusal_hint(self, code: object) -> str:
        """Return what to change, behind the daemon's own words."""
        if code != "invalid_api_key":
            return ""
        if not self.headers:
            return "; name its file with --key-file or $HOTRELOAD_KEY_FILE (key_file)"
        return "; verbs that change something need a key of [server] admin_keys_file"


def _why_distrusted(error: ssl.SSLCertVerificationError) -> str:
    words = error.verify_message
    if error.verify_code in NAME_DIFFERS:
        return f"its certificate is for another name ({words}); name it as the certificate does"
    if error.verify_code in NOT_TRUSTED:
        todo = "name the file of its CA with --ca-file or $HOTRELOAD_CA_FILE (ca_file)"
        return f"its certificate is not trusted ({words}); {todo}"
    return f"its certificate is not valid ({words}); renew it"


def no_address(url: str, named_by: str) -> ConfigError:
    """Return the error for a text that is no address of a daemon; a password in it is not shown."""
    shown = url.rpartition("@")[2]
    return ConfigError(f"{named_by or 'url'}: {shown!r} is no address: write https://host:port")


def read_key(file: Path) -> str:
    """Return the first key in a file of keys, one a line, behind its name if it has one."""
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"the key file {file} cannot be read: {why}") from None
    words = (list(takewhile(lambda word: word[0] != "#", line.split())) for line in lines)
    key = next((each[:2][-1] for each in words if each), "")
    if not _is_key(key):
        raise ConfigError(f"the key file {file} holds no key: write one into it, on a line")
    return key


def _is_key(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and " " not in text


def _trust(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        why = error.strerror or "it holds no certificate in PEM"
        raise ConfigError(f"the CA file {ca_file} cannot be used: {why}") from None


def _process(pid: int) -> tuple[str, str]:
    """Return a process's name and its state's letter; empty if unreadable."""
    try:
        before, _, after = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")
    except OSError:
        return "", ""
    return before.partition(" (")[2], after[:1]


def _open[C: http.client.HTTPConnection](connection: C) -> C:
    try:
        connection.connect()
    except OSError:
        connection.close()
        raise
    return connection


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(os.fspath(self.path))
