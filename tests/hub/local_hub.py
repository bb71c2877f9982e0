"""A small Hugging Face Hub on loopback, for real clients, with faults put in by the test."""

import hashlib
import json
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

REPO = "org/name"
PIECE = 1 << 16
LARGE = (".safetensors", ".bin")
"""Kept as LFS by the hub: named by sha256, and answered with a redirect."""

Files = Mapping[str, bytes]


@dataclass(eq=False)
class Fault:
    """What goes wrong with the requests that match `on` ("GET /path"), `times` of them."""

    on: str
    times: int = 1
    status: int | None = None
    code: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    """The body breaks off after so many bytes."""
    hold: int | None = None
    """After so many bytes nothing comes until `release` is set."""
    corrupt: bool = False
    """The last byte is another one."""
    without_ranges: bool = False
    drop: bool = False
    """The connection is closed without an answer."""
    silent: bool = False
    """Nothing is answered until `release` is set, and then nothing either."""
    drip: bool = False
    """Headers come letter by letter, without an end, until `release` is set."""
    seen: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class Asked:
    """A request that came."""

    line: str
    range: str | None
    token: str | None
    headers: str
    """All of them."""


class LocalHub:
    """Repos with commits and branches, behind an address."""

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, Files]] = {}
        self.branches: dict[str, dict[str, str]] = {}
        self.faults: list[Fault] = []
        self.asked: list[Asked] = []
        self.token: str | None = None
        self.headers: dict[str, str] = {}
        """Sent with every answer."""
        self.cdn: LocalHub | None = None
        """Where large files lie, if not here."""
        handler = type("Bound", (_Answers,), {"hub": self})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stop answering."""
        for fault in self.faults:
            fault.release.set()
        self._server.shutdown()
        self._server.hang_up()
        self._server.server_close()
        self._thread.join()

    def push(self, files: Files | Path, *, repo: str = REPO, branch: str = "main") -> str:
        """A new commit at the head of the branch; its sha."""
        if isinstance(files, Path):
            files = {path.name: path.read_bytes() for path in sorted(files.iterdir())}
        made = self.commits.setdefault(repo, {})
        sha = hashlib.sha1(f"{repo} {branch} {len(made)}".encode()).hexdigest()
        made[sha] = dict(files)
        self.point(branch, sha, repo=repo)
        return sha

    def point(self, branch: str, sha: str, *, repo: str = REPO) -> None:
        """Make a commit the head of the branch, whatever was."""
        self.branches.setdefault(repo, {})[branch] = sha

    def forget(self, sha: str, *, repo: str = REPO) -> None:
        """As after a force-push and a collection: the commit is gone."""
        del self.commits[repo][sha]

    def fault(self, on: str, **what: Any) -> Fault:
        """Break what matches from now on."""
        fault = Fault(on, **what)
        self.faults.append(fault)
        return fault

    def count(self, pattern: str) -> int:
        """How many requests matched."""
        return sum(bool(re.search(pattern, asked.line)) for asked in self.asked)

    def resolve(self, repo: str, revision: str) -> str | None:
        sha = self.branches.get(repo, {}).get(revision, revision)
        return sha if sha in self.commits.get(repo, {}) else None

    def blob(self, digest: str) -> bytes | None:
        blobs = (
            data
            for commits in self.commits.values()
            for files in list(commits.values())
            for data in files.values()
        )
        return next((data for data in blobs if hashlib.sha256(data).hexdigest() == digest), None)


@contextmanager
def local_hub() -> Iterator[LocalHub]:
    """A hub for the length of the block."""
    hub = LocalHub()
    try:
        yield hub
    finally:
        hub.close()


class _Server(ThreadingHTTPServer):
    """Has a thread for each connection, which reads for as long as the client holds on to it."""

    daemon_threads = True

    def __init__(self, *of_the_server: Any) -> None:
        super().__init__(*of_the_server)
        self._open: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def hang_up(self) -> None:
        """Let those threads end."""
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: ClassVar[LocalHub]
    fault: Fault | None

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        with suppress(ConnectionError):
            self._answer(unquote(urlsplit(self.path).path))

    do_GET = do_HEAD

    def _answer(self, path: str) -> None:
        line = f"{self.command} {path}"
        token = self.headers.get("Authorization")
        self.hub.asked.append(Asked(line, self.headers.get("Range"), token, str(self.headers)))
        self.fault = self._fault_for(line)
        if self.fault is not None and (self.fault.silent or self.fault.drip):
            self._hold_up(self.fault)
        elif self.fault is not None and self.fault.drop:
            self.close_connection = True
        elif self.fault is not None and self.fault.status is not None:
            self._error(self.fault.status, self.fault.code, self.fault.headers)
        elif self.hub.token and token != f"Bearer {self.hub.token}" and "/cdn/" not in path:
            self._error(401, "RepoNotFound")
        else:
            self._route(path)

    def _hold_up(self, fault: Fault) -> None:
        self.close_connection = True
        if fault.drip:
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Letters: ")
        while not fault.release.wait(0.01):
            self.wfile.write(b"x" if fault.drip else b"")

    def _fault_for(self, line: str) -> Fault | None:
        for fault in self.hub.faults:
            if fault.times > 0 and re.search(fault.on, line):
                fault.times -= 1
                fault.seen.set()
                return fault
        return None

    def _route(self, path: str) -> None:
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path):
            self._commit(found[1], found[2], None)
        elif found := re.fullmatch(r"/cdn/([0-9a-f]{64})", path):
            data = self.hub.blob(found[1])
            self._body(data, {}) if data is not None else self._error(404)
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/(.+)/([^/]+)", path):
            self._commit(found[1], found[2], found[3])
        else:
            self._error(404)

    def _commit(self, repo: str, revision: str, name: str | None) -> None:
        if repo not in self.hub.commits:
            self._error(404, "RepoNotFound")
        elif (sha := self.hub.resolve(repo, revision)) is None:
            self._error(404, "RevisionNotFound")
        elif name is None:
            self._describe(repo, sha)
        else:
            self._file(sha, name, self.hub.commits[repo][sha].get(name))

    def _describe(self, repo: str, sha: str) -> None:
        siblings = [_sibling(*each) for each in self.hub.commits[repo][sha].items()]
        said = {"id": repo, "modelId": repo, "sha": sha, "siblings": siblings}
        self._send(200, json.dumps(said).encode(), {"Content-Type": "application/json"})

    def _file(self, sha: str, name: str, data: bytes | None) -> None:
        commit = {"X-Repo-Commit": sha}
        if data is None:
            self._error(404, "EntryNotFound", commit)
        elif name.endswith(LARGE):
            digest = hashlib.sha256(data).hexdigest()
            place = (self.hub.cdn or self.hub).url
            where = {"Location": f"{place}/cdn/{digest}", "X-Linked-Etag": f'"{digest}"'}
            self._send(302, b"", commit | where | {"X-Linked-Size": str(len(data))})
        else:
            self._body(data, commit)

    def _body(self, data: bytes, headers: Mapping[str, str]) -> None:
        start = 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked and not (self.fault and self.fault.without_ranges):
            start = int(asked[1])
        if start >= len(data) > 0:
            self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        if self.fault is not None and self.fault.corrupt:
            data = data[:-1] + bytes([data[-1] ^ 1])
        if start:
            headers = {**headers, "Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        self._send(206 if start else 200, data[start:], headers)

    def _error(self, status: int, code: str = "", headers: Mapping[str, str] = {}) -> None:
        named = {"X-Error-Code": code, "X-Error-Message": "injected"} if code else {}
        self._send(status, b'{"error": "injected"}', {**named, **headers})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        said = {"Content-Length": str(len(body)), **self.hub.headers, **headers}
        for name, value in said.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self._pour(body)

    def _pour(self, body: bytes) -> None:
        fault = self.fault or Fault("")
        stop = fault.cut if fault.cut is not None else fault.hold
        stop = len(body) if stop is None else min(stop, len(body))
        self.wfile.write(body[:stop])
        self.wfile.flush()
        if fault.cut is not None:
            self.close_connection = True
        elif fault.hold is not None:
            fault.release.wait()
            self.wfile.write(body[stop:])


def git_blob_id(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _sibling(name: str, data: bytes) -> dict[str, Any]:
    said: dict[str, Any] = {"rfilename": name, "size": len(data), "blobId": git_blob_id(data)}
    if name.endswith(LARGE):
        digest = hashlib.sha256(data).hexdigest()
        said["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 134}
    return said
