"""Asks and orders the daemon; the command's verbs talk to it by this client, too."""

import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hotreload.client.places import SocketPlace, UrlPlace, read_key
from hotreload.errors import (
    Busy,
    EngineLost,
    HotReloadError,
    NotReady,
    TimedOut,
    Unreachable,
)
from hotreload.facts.names import DEFAULT_SOCKET
from hotreload.picture.words import Fields, plain
from hotreload.types import as_text

STATUS_SECONDS = 10.0
"""The longest wait for a daemon's status."""
SPARE_SECONDS = 10.0
"""The client waits longer than the daemon by this: the timeout message is the daemon's."""
STEP_LOOK_SECONDS = 0.5
"""Seconds between two looks while a step is awaited."""


@dataclass(frozen=True, slots=True)
class DaemonAnswer:
    """A parsed answer; `generation` is the generation that answers requests now."""

    status: int
    fields: Fields
    generation: str | None


class Client:
    """The daemon on one socket, or at one address."""

    def __init__(
        self,
        where: str | os.PathLike[str] = DEFAULT_SOCKET,
        *,
        key: str | None = None,
        key_file: str | os.PathLike[str] | None = None,
        ca_file: str | os.PathLike[str] | None = None,
        named_by: str = "",
    ) -> None:
        """`where` is a socket's path, or an address as `https://host:port`.

        An address may need a key, and the file of the CA that signed its certificate. `named_by`
        is the option or variable that named the daemon, for messages.
        """
        self.place: SocketPlace | UrlPlace
        if "://" in (text := os.fspath(where)):
            sent = read_key(Path(key_file)) if key_file is not None else key
            ca = None if ca_file is None else Path(ca_file)
            self.place = UrlPlace(text, sent, ca, named_by)
        else:
            self.place = SocketPlace(Path(text), named_by)
        self._under_way: set[http.client.HTTPConnection] = set()
        self._is_broken_off = False

    # --- look -------------------------------------------------------------------------------------

    def status(self, timeout: float = STATUS_SECONDS) -> Fields:
        """Return the status: the live and the wanted weights, and refusals."""
        return self.get("/status", timeout)

    def events(self) -> Iterator[Fields]:
        """Yield each event from now on, until the daemon stops."""
        return self.stream("GET", "/events")

    def wait_for(self, step: int | str, timeout: float | None = None) -> Fields:
        """Wait until this step or a newer one is live, or the checkpoint of this name.

        Returns the status. HotReloadError if that checkpoint is refused, TimedOut if it is not
        live within `timeout` seconds.
        """
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            rows = self.get("/checkpoints?most=100")["checkpoints"]
            if any(row["state"] == "live" and _is_reached(row, step) for row in rows):
                return self.status()
            wanted = [row for row in rows if step in (row["step"], row["name"])]
            if wanted and wanted[0]["state"] == "refused":
                words = f"{wanted[0]['name']} was refused: {wanted[0]['why']}"
                raise HotReloadError(plain(words), code=wanted[0]["code"])
            if until is not None and time.monotonic() >= until:
                raise TimedOut(f"after {timeout:g} s {step} is not live")
            time.sleep(STEP_LOOK_SECONDS)

    # --- change -----------------------------------------------------------------------------------

    def reload(
        self,
        checkpoint: str | Path | None = None,
        *,
        force: bool = False,
        dry_run: bool = False,
        wait: bool = True,
        timeout: float | None = None,
        reason: str | None = None,
    ) -> DaemonAnswer:
        """Order a checkpoint, or the newest: a Path or absolute path, or its name in the source.

        The answer's `outcome` says what came of it; a refusal is no exception.
        """
        wish: Fields = {"force": force, "wait": wait}
        if dry_run:
            wish["dry_run"] = True
        if checkpoint is not None:
            is_path = isinstance(checkpoint, Path) or checkpoint.startswith("/")
            wish["model_path" if is_path else "revision"] = as_text(str(checkpoint))
        return self._order("/admin/reload_weights", wish, timeout, reason)

    def rollback(
        self,
        generation: int | None = None,
        *,
        hold: bool = True,
        timeout: float | None = None,
        reason: str | None = None,
    ) -> DaemonAnswer:
        """Go back to a generation, or to the one before; `hold` pins it."""
        wish: Fields = {} if generation is None else {"generation": generation}
        if not hold:
            wish["hold"] = False
        return self._order("/admin/rollback", wish, timeout, reason)

    def pin(self, *, timeout: float | None = None, reason: str | None = None) -> DaemonAnswer:
        """Hold the live weights against the source."""
        return self._order("/admin/pin", {}, timeout, reason)

    def unpin(self, *, reason: str | None = None) -> DaemonAnswer:
        """Follow the source again."""
        return self._order("/admin/unpin", {}, SPARE_SECONDS, reason)

    def perturb(
        self, wish: Fields, *, timeout: float | None = None, reason: str | None = None
    ) -> DaemonAnswer:
        """Put noise on the live weights: `seed`, `scale` and `num_leaves` say which."""
        return self._order("/admin/perturb_weights", {**wish}, timeout, reason)

    def _order(
        self, path: str, wish: Fields, timeout: float | None, reason: str | None
    ) -> DaemonAnswer:
        within = None
        if timeout is not None:
            wish["timeout"], within = timeout, timeout + SPARE_SECONDS
        if reason is not None:
            wish["reason"] = reason
        return self.ask("POST", path, wish, timeout=within)

    # --- any route --------------------------------------------------------------------------------

    def get(self, path: str, timeout: float = STATUS_SECONDS) -> Fields:
        """Send a GET and return the fields of its answer."""
        return self.ask("GET", path, timeout=timeout).fields

    def ask(
        self, method: str, path: str, fields: Fields | None = None, *, timeout: float | None = None
    ) -> DaemonAnswer:
        """Send one request and return its answer; a problem in the answer is raised as an error."""
        with self._exchange(method, path, fields, timeout) as response:
            content = response.read()
        said = self._fields_in(content)
        if response.status >= 400 and "outcome" not in said:
            raise self._error_of(response.status, said)
        return DaemonAnswer(response.status, said, response.headers.get("X-Hotreload-Generation"))

    def stream(self, method: str, path: str, fields: Fields | None = None) -> Iterator[Fields]:
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
                raise self._error_of(response.status, self._fields_in(response.read()))
            yield _events(response)

    @property
    def is_here(self) -> bool:
        """True if the daemon runs on this machine, behind a socket."""
        return isinstance(self.place, SocketPlace)

    @property
    def looks_apart(self) -> bool:
        """True if a second socket answers looks at once, while the first waits for a start."""
        return isinstance(self.place, SocketPlace) and self.place.look_path.exists()

    def break_off(self) -> None:
        """End every request of this client, from another thread; it takes none afterwards."""
        self._is_broken_off = True
        for connection in [*self._under_way]:
            with suppress(OSError, AttributeError):  # it ends by itself
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _fields_in(self, content: bytes) -> Fields:
        try:
            said = json.loads(content) if content else {}
        except ValueError:
            said = None
        if not isinstance(said, dict):
            raise Unreachable(f"the server on {self.place} is not hotreload")
        return said

    def _error_of(self, status: int, problem: Fields) -> HotReloadError:
        return error_of(status, problem, self.place.refusal_hint(problem.get("code")))

    @contextmanager
    def _exchange(
        self, method: str, path: str, fields: Fields | None, timeout: float | None
    ) -> Iterator[http.client.HTTPResponse]:
        body = None if fields is None else json.dumps(fields).encode()
        headers = {**self.place.headers, **({"Content-Type": "application/json"} if body else {})}
        looks = method == "GET" and not path.startswith("/admin")
        connection = self.place.connect(timeout, looks=looks)
        self._under_way.add(connection)
        try:
            if self._is_broken_off:
                raise ConnectionAbortedError("this client was told to end")
            connection.request(method, path, body, headers)
            yield connection.getresponse()
        except TimeoutError:
            words = f"no answer on {self.place.name_of(connection)} within {timeout:g} s"
            raise TimedOut(f"{words}; {self.place.why_silent(connection)}") from None
        except (ConnectionError, ssl.SSLError, http.client.HTTPException) as error:
            words = f"the daemon on {self.place.name_of(connection)} broke off"
            why = f" ({error or type(error).__name__})"
            raise Unreachable(words + why + self.place.after_a_break()) from error
        finally:
            self._under_way.discard(connection)
            connection.close()


def error_of(status: int, problem: Fields, hint: str = "") -> HotReloadError:
    """Return the error for a problem that the daemon sent."""
    kinds = {409: Busy, 504: TimedOut}
    code = problem.get("code")
    by_code = {"engine_lost": EngineLost, "booting": NotReady}
    kind = by_code.get(str(code)) or kinds.get(status, HotReloadError)
    words = problem.get("detail", f"the daemon answered {status}")
    return kind(f"{words}{hint}", code=code, findings=problem.get("reasons", ()))


def _is_reached(row: Fields, wanted: int | str) -> bool:
    """Return whether a checkpoint is the wanted one, or of a newer step."""
    if isinstance(wanted, str):
        return bool(row["name"] == wanted)
    return row["step"] is not None and bool(row["step"] >= wanted)


def _events(response: http.client.HTTPResponse) -> Iterator[Fields]:
    """Yield events as they come, and raise for a broken stream, which `readline` would hide."""
    rest = b""
    while piece := response.read1(65536):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            data = line.removeprefix(b"data: ")
            if data not in (line, b"[DONE]"):
                yield json.loads(data)
