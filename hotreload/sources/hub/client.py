"""Asks a hub about one repo: which commit a name means, which files it has, and for their bytes.

Blocks, so it is called in threads. huggingface_hub makes the requests; `download` checks the bytes.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

from hotreload import __version__
from hotreload.figures import size as size_words
from hotreload.sources.hub.faults import (
    BY_SETTINGS,
    FaultKind,
    HubFault,
    Remedies,
    fault_of_answer,
    fault_of_connection,
    wait_asked_for,
)
from hotreload.sources.settings import HubSettings

CONNECT_SECONDS, HEAD_SECONDS, SILENT_READ_SECONDS = 10.0, 10.0, 30.0
DOWNLOAD_CHUNK = 1 << 20
LARGEST_LISTING = 64 << 20
SHA = re.compile(r"[0-9a-f]{40}")
PUBLIC_HUB = "https://huggingface.co"
MOST_MOVES = 5
TURNED_OFF = ("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_DISABLE_XET")
"""Habits of huggingface_hub that are off, unless an environment variable says otherwise."""
_COMMIT, _ERROR = "X-Repo-Commit", "X-Error-Code"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a commit as the hub describes it; `digest` is `sha256:…` or `git:…`."""

    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Head:
    """The commit a name means now; and, if our rate is used up, how many seconds not to ask."""

    sha: str
    limit: float | None


@dataclass(frozen=True)
class HubOptions(HubSettings):
    """Rules for a repo: its revision and files, how often to ask the hub, and with which token."""

    token: Callable[[], str | None] = lambda: None
    remedies: Remedies = BY_SETTINGS
    reads_once: Callable[[], bool] = lambda: False
    """Say if staging may be the first to read the bytes of a commit."""


class HubClient:
    """Speaks with a hub about one repo."""

    def __init__(
        self,
        repo: str,
        options: HubOptions,
        limited: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """`limited` is called, in the thread that asks, with how many seconds not to ask again."""
        self.repo, self.remedies, self._limited = repo, options.remedies, limited
        usual = os.environ.get("HF_ENDPOINT", "").rstrip("/") or PUBLIC_HUB
        self.endpoint = options.endpoint or usual
        self._shown = _without_password(self.endpoint)
        self._token = options.token

    def head(self, revision: str) -> Head:
        """Ask which commit a branch, tag or commit name means, by one HEAD of a small file."""
        url = self._url(revision, "config.json")
        for _ in range(MOST_MOVES):
            with self._send("HEAD", url, revision) as answer:
                sha, moved_to = answer.headers.get(_COMMIT), answer.headers.get("Location", "")
                # A repo without that file has commits all the same, and says which.
                lacks_file = sha and answer.headers.get(_ERROR) == "EntryNotFound"
                if answer.status_code >= 400 and not lacks_file:
                    raise fault_of_answer(answer, self._name(revision), self.repo, self.remedies)
                if sha and SHA.fullmatch(sha):  # it becomes a folder's name
                    return Head(sha, wait_asked_for(answer.headers))
            if not moved_to.startswith("/"):  # a renamed repo is found on the same hub
                break
            url = self.endpoint + moved_to
        raise self._no_hub(revision)

    def files(self, sha: str) -> list[HubFile]:
        """Ask for every file of a commit, with its size and digest."""
        url = f"{self.endpoint}/api/models/{self.repo}/revision/{sha}?blobs=true"
        with self._send("GET", url, sha) as answer:
            if answer.status_code >= 400:
                raise fault_of_answer(answer, self._name(sha), self.repo, self.remedies)
            return self._parse_listing(answer, sha)

    @contextmanager
    def open_at(self, sha: str, file: HubFile, offset: int) -> Iterator[Iterator[bytes]]:
        """Request a file's bytes from `offset` on; none if the hub cannot start there."""
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        url, name = self._url(sha, file.name), f"{self._name(sha)}: {file.name}"
        with self._send("GET", url, sha, headers) as answer:
            if offset and answer.status_code in (200, 416):
                yield iter(())
                return
            if answer.status_code >= 400:
                raise fault_of_answer(answer, name, self.repo, self.remedies)
            yield self._pieces(answer, name)

    def hang_up(self) -> None:
        """Close this thread's connections; the client library would keep them for ever."""
        _hub().get_session().close()

    def _parse_listing(self, answer: Any, sha: str) -> list[HubFile]:
        try:
            said = json.loads(self._short_body(answer, sha))
            files = [_file(entry) for entry in said["siblings"]]
        except HubFault:
            raise
        except (ValueError, KeyError, TypeError, RecursionError):
            raise self._no_hub(sha) from None
        except Exception as error:  # the HTTP client's; some are OSErrors, not the disk's
            raise fault_of_connection(error, self._name(sha), self._shown) from None
        if said.get("sha") != sha:
            raise HubFault(f"{self._name(sha)}: the hub answers for another commit")
        return files

    def _short_body(self, answer: Any, sha: str) -> bytes:
        """Read the whole answer, unless it is so long that it could fill the daemon's memory."""
        body = bytearray()
        for piece in answer.iter_content(DOWNLOAD_CHUNK):
            body += piece
            if len(body) > LARGEST_LISTING:
                words = f"the hub's list of files is longer than {size_words(LARGEST_LISTING)}"
                raise HubFault(f"{self._name(sha)}: {words}", FaultKind.DENIED)
        return bytes(body)

    def _pieces(self, answer: Any, name: str) -> Iterator[bytes]:
        """Yield bytes as they come: those that wait for a full piece would die with the process."""
        try:
            while piece := answer.raw.read1(DOWNLOAD_CHUNK):
                yield piece
        except Exception as error:
            raise fault_of_connection(error, name, self._shown) from None

    @contextmanager
    def _send(
        self, method: str, url: str, revision: str, more: Mapping[str, str] | None = None
    ) -> Iterator[Any]:
        """Make one request; its connection is given back when the block ends.

        A GET follows redirects; to another host it goes without the token.
        """
        headers: dict[str, str] = _hub().build_hf_headers(
            token=self._token() or False, library_name="hotreload", library_version=__version__
        )
        headers |= {"Accept-Encoding": "identity", **(more or {})}
        for _ in range(MOST_MOVES):
            with closing(self._request(method, url, revision, headers)) as answer:
                moved_to = answer.headers.get("Location") if method == "GET" else None
                if not (moved_to and 300 <= answer.status_code < 400):
                    yield answer
                    return
            url, before = urljoin(url, moved_to), url
            if _place(url) != _place(before):
                headers.pop("authorization", None)
        raise self._no_hub(revision)

    def _request(self, method: str, url: str, revision: str, headers: Mapping[str, str]) -> Any:
        session = _hub().get_session()
        silent = HEAD_SECONDS if method == "HEAD" else SILENT_READ_SECONDS
        try:
            answer = session.request(
                method,
                url,
                headers=headers,
                auth=_login_in(url),
                timeout=(CONNECT_SECONDS, silent),
                allow_redirects=False,
                stream=True,
            )
        except Exception as error:  # the HTTP client has many kinds
            raise fault_of_connection(error, self._name(revision), self._shown) from None
        if answer.status_code < 400 and (wait := wait_asked_for(answer.headers)) is not None:
            self._limited(wait)
        return answer

    def _url(self, revision: str, file: str) -> str:
        quoted = quote(revision, safe="")
        return f"{self.endpoint}/{self.repo}/resolve/{quoted}/{quote(file)}"

    def _name(self, revision: str) -> str:
        return f"{self.repo}@{revision[:12] if len(revision) == 40 else revision}"

    def _no_hub(self, revision: str) -> HubFault:
        words = f"the server at {self._shown} is not a hub; {self.remedies.endpoint}"
        return HubFault(f"{self._name(revision)}: {words}")


def _without_password(endpoint: str) -> str:
    """Return the endpoint without user and password, which HF_ENDPOINT may hold."""
    scheme, _, rest = endpoint.partition("://")
    place, slash, path = rest.partition("/")
    return f"{scheme}://{place.rpartition('@')[2]}{slash}{path}"


def _login_in(url: str) -> Any:
    """Make the `auth` for `requests`; None would send ~/.netrc's login in place of the token."""
    parts = urlsplit(url)
    if parts.username:
        return unquote(parts.username), unquote(parts.password or "")
    return lambda request: request


def _place(url: str) -> tuple[str, str]:
    """Return the scheme and host that a token for this address may be sent to."""
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _file(entry: Mapping[str, Any]) -> HubFile:
    lfs = entry.get("lfs")
    if lfs:
        return HubFile(str(entry["rfilename"]), int(lfs["size"]), f"sha256:{lfs['sha256']}")
    return HubFile(str(entry["rfilename"]), int(entry["size"]), f"git:{entry['blobId']}")


def _hub() -> Any:
    """Import huggingface_hub's client, late (it takes half a second) and without telemetry."""
    for name in TURNED_OFF:
        os.environ.setdefault(name, "1")
    from huggingface_hub import utils

    return utils


log = logging.getLogger("hotreload.sources")


def usual_token() -> str | None:
    """HF_TOKEN, or what `hf auth login` left; None when there is neither, or it cannot be read."""
    from huggingface_hub import get_token

    try:
        token: str | None = get_token()
    except (OSError, ValueError) as error:  # ValueError: it is not text
        _warn_once(getattr(error, "strerror", None) or "it is not text")
        return None
    return token


@cache
def _warn_once(why: str) -> None:
    """Warn once: the token is read for each request."""
    todo = (
        "make the token file that `hf auth login` wrote readable for this user, or remove it; "
        "HF_TOKEN and [source] token_file come before it"
    )
    log.warning("hub.no_token", extra={"why": why, "todo": todo})
