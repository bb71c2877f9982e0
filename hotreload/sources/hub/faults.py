"""A hub's faults, in words that say what to do and hold no header, token or query; and patience.

The advice differs: a daemon is mended by its settings, a command by its options.
"""

import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any

from hotreload.errors import SourceUnavailable

LONGEST_WAIT = 86400.0
"""No hub is waited for longer than a day, whatever it asks for."""


@dataclass(frozen=True, slots=True)
class Remedies:
    """The ends of error messages; the defaults are a daemon's, and name its settings."""

    endpoint: str = "check [source] endpoint"
    revision: str = "check [source] revision"
    repo: str = "check [source] repo and token_file"
    token: str = "set [source] token_file"
    limited: str = "a larger [source] poll asks less"
    files: str = "that [source] allow lets through"
    cache: str = "[source] cache"
    again: str = "`hotreload reload --force`"


BY_SETTINGS = Remedies()
BY_OPTIONS = Remedies(
    endpoint="check HF_ENDPOINT",
    revision="check what stands behind the @",
    repo="check the name, and --token-file or HF_TOKEN",
    token="give --token-file or set HF_TOKEN",
    limited="run it again then",
    files="at its top",
    cache="--cache",
    again="the same command",
)
"""The ends of messages of `hotreload check` and `swap`."""


class FaultKind(Enum):
    """The answer of a fault to the question when to ask again."""

    PASSING = "source"
    """Ask again soon, then less and less often."""
    DENIED = "denied"
    """Ask again seldom: an operator must change something first."""
    LIMITED = "rate_limited"
    """Do not ask again before the time that the hub named."""


class HubFault(SourceUnavailable):
    """The hub did not give what was asked for."""

    def __init__(
        self, message: str, kind: FaultKind = FaultKind.PASSING, *, retry_after: float | None = None
    ) -> None:
        super().__init__(message, code=kind.value, retry_after=retry_after)
        self.kind = kind


def fault_of_answer(response: Any, name: str, repo: str, remedies: Remedies) -> HubFault:
    """Make the fault of an answer with an error status; `name` is `org/name@revision`."""
    status, code = response.status_code, response.headers.get("X-Error-Code")
    what = f"{name}: {status}: "
    if status == 429:
        wait = wait_asked_for(response.headers)
        how_long = f" for {wait:.0f} s" if wait else ""
        words = f"the hub is rate-limiting us{how_long}; {remedies.limited}"
        return HubFault(what + words, FaultKind.LIMITED, retry_after=wait)
    if code == "EntryNotFound":  # a 404, too
        return HubFault(f"{what}the hub lists a file that it does not have")
    if status in (401, 403, 404):
        return HubFault(what + _explain_denial(status, code, repo, remedies), FaultKind.DENIED)
    if status >= 500:
        wait = wait_asked_for(response.headers)
        return HubFault(f"{what}the hub has trouble of its own", retry_after=wait)
    return HubFault(f"{what}the hub does not understand us; {remedies.endpoint}")


def _explain_denial(status: int, code: str | None, repo: str, remedies: Remedies) -> str:
    if code == "GatedRepo":
        return f"access to {repo} is gated; accept its conditions with the token's account"
    if code == "RevisionNotFound":
        return f"{repo} has no such branch, tag or commit; {remedies.revision}"
    if status == 403:
        return f"the token may not read {repo}; give it read access to this repo"
    if status == 404:
        return f"there is no {repo} that this token may read; {remedies.repo}"
    return (
        f"the hub wants a token; {remedies.token}, or check that the token may read {repo} "
        "and that the name is right"
    )


def fault_of_connection(error: Exception, name: str, endpoint: str) -> HubFault:
    """Make the fault of an HTTP client's exception, whose own text may hold secrets."""
    text = str(error)
    if type(error).__name__ == "OfflineModeIsEnabled":
        return HubFault(
            f"{name}: HF_HUB_OFFLINE is set; unset it to follow the hub", FaultKind.DENIED
        )
    for sign, words in _SIGNS.items():
        if re.search(sign, text) or re.search(sign, type(error).__name__):
            return HubFault(f"{name}: the hub at {endpoint} {words}")
    return HubFault(f"{name}: the hub at {endpoint} cannot be read ({type(error).__name__})")


_SIGNS: Mapping[str, str] = {
    "NameResolution|getaddrinfo|Name or service": "cannot be found: its name is not known (DNS)",
    "Connection refused": "cannot be reached: connection refused",
    "unreachable|No route": "cannot be reached: no way there from this machine",
    "SSL|certificate": "shows a certificate that is not trusted here",
    "ConnectTimeout": "cannot be reached: no answer to a connection",
    "Timeout|timed out": "does not answer in time",
    "IncompleteRead|Chunked|reset|aborted|disconnected": "broke off in the middle of an answer",
}


def wait_asked_for(headers: Mapping[str, str]) -> float | None:
    """Return the seconds that the hub asks us to wait, by Retry-After or RateLimit."""
    wait = _retry_after(headers.get("Retry-After", ""))
    if wait is None:
        wait = _parse_rate_limit(headers.get("RateLimit", ""))
    return None if wait is None else min(max(wait, 0.0), LONGEST_WAIT)


def _retry_after(text: str) -> float | None:
    if re.fullmatch(r"\d{1,9}", text.strip(), re.ASCII):
        return float(text)
    try:
        then = parsedate_to_datetime(text)
        return (then - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError, OverflowError):  # not a date, or one without a zone
        return None


def _parse_rate_limit(text: str) -> float | None:
    """Return 55 for `"api";r=0;t=55`: no request is left, new ones come in 55 s. Else None."""
    left = re.search(r"\br=(\d{1,9})\b", text, re.ASCII)
    until = re.search(r"\bt=(\d{1,9})\b", text, re.ASCII)
    return float(until[1]) if left and until and int(left[1]) == 0 else None


# --- when a hub may be asked again: jitter, growing waits, and what the hub itself asks for ------

LONGEST_PASSING = 300.0
DENIED_FIRST, DENIED_LONGEST = 300.0, 3600.0
LIMITED_FIRST = 60.0
JITTER = 0.1


class HubCall(Enum):
    """The kinds of calls to a hub; a look that succeeds says nothing about downloads that fail."""

    LOOK = "look"
    DOWNLOAD = "download"


class Patience:
    """Counts failures in a row, and remembers until when a hub is rate-limiting us."""

    def __init__(
        self,
        poll: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._poll, self._clock, self._chance = poll, clock, chance
        self._failures = {HubCall.LOOK: 0, HubCall.DOWNLOAD: 0}
        self._silent_until = 0.0

    @property
    def silence(self) -> float:
        """Return for how many more seconds this process must not ask the hub."""
        return max(0.0, self._silent_until - self._clock())

    def after_answer(self, limit: float | None) -> float:
        """Return the seconds to wait after an answer; for `limit` seconds the hub is left alone."""
        self._failures[HubCall.LOOK] = 0
        if limit is not None:
            self.be_silent(limit)
        return max(self._around(self._poll), self.silence)

    def after_download(self) -> None:
        """Forget the downloads that failed: one came whole."""
        self._failures[HubCall.DOWNLOAD] = 0

    def heed(self, fault: HubFault, asking: HubCall = HubCall.LOOK) -> None:
        """Remember how long this fault says to leave the hub alone, for every caller."""
        if fault.retry_after is not None:
            self.be_silent(fault.retry_after)
        elif fault.kind is FaultKind.LIMITED:
            self.be_silent(LIMITED_FIRST * (1 << min(self._failures[asking], 6)))

    def after_fault(self, fault: HubFault, asking: HubCall = HubCall.LOOK) -> float:
        """Count a fault in a poll or a download; return the seconds to wait after it."""
        self.heed(fault, asking)
        self._failures[asking] += 1
        wait = self._wait(fault.kind, self._failures[asking])
        return max(self._around(wait), self.silence)

    def _wait(self, kind: FaultKind, failures: int) -> float:
        doubled = float(1 << min(failures - 1, 10))
        if kind is FaultKind.DENIED:
            return max(self._poll, min(DENIED_FIRST * doubled, DENIED_LONGEST))
        return max(self._poll, min(self._poll * doubled, LONGEST_PASSING))

    def be_silent(self, seconds: float) -> None:
        """Leave the hub alone at least this long, plus a random part: others wait as long, too."""
        until = self._clock() + seconds * (1 + JITTER * self._chance())
        self._silent_until = max(self._silent_until, until)

    def _around(self, seconds: float) -> float:
        return seconds * (1 + JITTER * (2 * self._chance() - 1))
