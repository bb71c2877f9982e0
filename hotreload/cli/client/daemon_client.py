"""Talks to the daemon over its unix socket, with the standard library alone."""

import argparse
import errno
import http.client
import json
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hotreload.cli.exits import NotReady, TimedOut, Unreachable
from hotreload.errors import Busy, ConfigError, EngineLost, HotReloadError
from hotreload.facts.names import DEFAULT_CONFIG, DEFAULT_SOCKET, LOOKING
from hotreload.picture.words import Fields

STATUS_SECONDS = 10.0
"""The longest wait for a daemon's status."""

STOPPED = ("T", "t")
"""The states of a process that a signal or a debugger has stopped."""


@dataclass(frozen=True, slots=True)
class NamedSocket:
    """A socket's path, and the option, variable or file that named it."""

    path: Path
    origin: str


@dataclass(frozen=True, slots=True)
class DaemonAnswer:
    """A parsed answer; `generation` is the generation that answers requests now."""

    status: int
    fields: Fields
    generation: str | None


def find_socket(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> NamedSocket:
    """Return the daemon's socket: by the options, then the environment, then the usual settings.

    Options come first: a variable that a shell exports may name another daemon.
    """
    if args.socket is not None:
        return NamedSocket(Path(args.socket), "--socket")
    named = _named_in_environ(environ)
    if args.config is not None:
        return _in_settings(Path(args.config)) or named or _by_default(args.config)
    if environ.get("HOTRELOAD_SOCKET"):
        return NamedSocket(Path(environ["HOTRELOAD_SOCKET"]), "$HOTRELOAD_SOCKET")
    file = environ.get("HOTRELOAD_CONFIG")
    if file is None and os.access(DEFAULT_CONFIG, os.R_OK):
        file = str(DEFAULT_CONFIG)
    in_file = _in_settings(Path(file)) if file else None  # raises if it cannot be read
    return named or in_file or _by_default(file)


def _by_default(file: str | None) -> NamedSocket:
    return NamedSocket(DEFAULT_SOCKET, f"the default; {file} names none" if file else "the default")


def _in_settings(file: Path) -> NamedSocket | None:
    from hotreload.settings.given import read_toml  # imported only if there is a file

    server = read_toml(file).get("server", {})
    path = server.get("socket") if isinstance(server, dict) else None
    if path is None:
        return None
    if not isinstance(path, str):
        raise ConfigError(f"{file}: [server] socket must be a path")
    return NamedSocket(
        file.absolute().parent / Path(path).expanduser(), f"[server] socket in {file}"
    )


def _named_in_environ(environ: Mapping[str, str]) -> NamedSocket | None:
    name = "HOTRELOAD__SERVER__SOCKET"
    return NamedSocket(Path(environ[name]), f"${name}") if environ.get(name) else None


class DaemonClient:
    """The daemon behind one socket."""

    def __init__(self, where: NamedSocket) -> None:
        self._where = where

    @property
    def path(self) -> Path:
        """The socket's path."""
        return self._where.path

    @property
    def looks_apart(self) -> bool:
        """True if a second socket answers looks at once, while the first waits for a start."""
        return self._look_path.exists()

    @property
    def _look_path(self) -> Path:
        return self._where.path.with_name(self._where.path.name + LOOKING)

    def get(self, path: str, timeout: float = STATUS_SECONDS) -> Fields:
        """Send a GET and return the fields of its answer."""
        return self.ask("GET", path, timeout=timeout).fields

    def ask(
        self, method: str, path: str, fields: Fields | None = None, *, timeout: float | None = None
    ) -> DaemonAnswer:
        """Send one request and return its answer; a problem in the answer is raised as an error."""
        with self._exchange(method, path, fields, timeout) as response:
            content = response.read()
        try:
            said = json.loads(content) if content else {}
        except ValueError:
            raise Unreachable(f"the server on {self._where.path} is not hotreload") from None
        if response.status >= 400 and "outcome" not in said:
            raise error_of(response.status, said)
        return DaemonAnswer(response.status, said, response.headers.get("X-Hotreload-Generation"))

    def events(self, method: str, path: str, fields: Fields | None = None) -> Iterator[Fields]:
        """Send a request and yield each event of the stream, until the daemon ends it."""
        with self.open_stream(method, path, fields) as events:
            yield from events

    @contextmanager
    def open_stream(
        self, method: str, path: str, fields: Fields | None = None
    ) -> Iterator[Iterator[Fields]]:
        """Send a request and yield its stream, which has begun: no later event is missed."""
        with self._exchange(method, path, fields, None) as response:
            if response.status >= 400:
                raise error_of(response.status, json.loads(response.read()))
            yield _events(response)

    @contextmanager
    def _exchange(
        self, method: str, path: str, fields: Fields | None, timeout: float | None
    ) -> Iterator[http.client.HTTPResponse]:
        body = None if fields is None else json.dumps(fields).encode()
        headers = {"Content-Type": "application/json"} if body else {}
        connection = self._connect(method == "GET" and not path.startswith("/admin"), timeout)
        try:
            connection.request(method, path, body, headers)
            yield connection.getresponse()
        except TimeoutError:
            words = f"no answer on {connection.path} within {timeout:g} s"
            raise TimedOut(f"{words}; {_why_silent(connection.sock)}") from None
        except (ConnectionError, http.client.HTTPException) as error:
            words = f"the daemon on {connection.path} broke off ({error or type(error).__name__})"
            raise Unreachable(words) from error
        finally:
            connection.close()

    def _connect(self, looks: bool, timeout: float | None) -> "_Connection":
        """Connect to the daemon; a look first tries the socket that answers at once."""
        if looks:
            with suppress(OSError):
                return _connect(self._look_path, timeout)
        try:
            return _connect(self._where.path, timeout)
        except OSError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: OSError) -> Unreachable:
        no_socket = error.errno == errno.ECONNREFUSED and not self._where.path.is_socket()
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
        path, origin = self._where.path, self._where.origin
        return Unreachable(
            f"cannot reach the daemon on {path} (from {origin}): {what}"
            "\n  name another with --socket, --config or $HOTRELOAD_SOCKET",
            may_come=error.errno in (errno.ENOENT, errno.ECONNREFUSED) and not no_socket,
        )


def _why_silent(connected: socket.socket) -> str:
    """Return which process took the connection without answering, and what the user can do."""
    pid, _, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
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


def _process(pid: int) -> tuple[str, str]:
    """Return a process's name and its state's letter; empty if unreadable."""
    try:
        before, _, after = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")
    except OSError:
        return "", ""
    return before.partition(" (")[2], after[:1]


def _events(response: http.client.HTTPResponse) -> Iterator[Fields]:
    for line in _lines(response):
        data = line.removeprefix(b"data: ")
        if data not in (line, b"[DONE]"):
            yield json.loads(data)


def _lines(response: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield lines as they come, and raise for a broken stream, which `readline` would hide."""
    rest = b""
    while piece := response.read1(65536):
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines


def error_of(status: int, problem: Fields) -> HotReloadError:
    """Return the error for a problem that the daemon sent."""
    kinds = {409: Busy, 504: TimedOut}
    code = problem.get("code")
    by_code = {"engine_lost": EngineLost, "booting": NotReady}
    kind = by_code.get(str(code)) or kinds.get(status, HotReloadError)
    words = problem.get("detail", f"the daemon answered {status}")
    return kind(str(words), code=code, findings=problem.get("reasons", ()))


def _connect(path: Path, timeout: float | None) -> "_Connection":
    connection = _Connection(path, timeout)
    try:
        connection.connect()
    except OSError:
        connection.close()
        raise
    return connection


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float | None) -> None:
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(os.fspath(self.path))
