"""Sends systemd the state: READY, RELOADING, STOPPING, a line of STATUS, and signs of life.

Nothing here raises or decides: requests are answered even when systemd does not listen.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass

from hotreload import events
from hotreload.attempts import Attempt
from hotreload.figures import size
from hotreload.picture.picture import Picture
from hotreload.picture.under_way import DOING_WORDS
from hotreload.types import GateState, Outcome, Phase, Revision

log = logging.getLogger("hotreload.systemd")

SEND_SECONDS = 1.0
LONGEST_STATUS = 1000
TICK_SECONDS = 10.0
EXTENSION_SECONDS = 60.0
"""The time that systemd waits for the next word of a start or an attempt; then it is hung."""
PROGRESS_STATUS_SECONDS = 1.0
LONGEST_BOOT = 3600.0
"""The longest time of a start; after it a turning loop no longer asks systemd for more time."""

ENDED = {
    Outcome.PASSED: "passed:",
    Outcome.REJECTED: "rejected",
    Outcome.POSTPONED: "put off",
    Outcome.SUPERSEDED: "let go",
    Outcome.LOST: "lost the engine on",
}


class Notifier:
    """The datagram socket that systemd names; without one nothing is sent."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        name = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + name[1:] if name.startswith("@") else name
        self.watchdog = _watchdog_seconds(environ) if name else None
        """After how many seconds without a sign of life systemd kills us; None for never."""

    def send(self, *lines: str) -> None:
        """Send the lines as one message; what cannot be sent is lost."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.settimeout(SEND_SECONDS)
                out.connect(self._address)
                out.send("\n".join(lines).encode())
        except OSError as error:
            log.debug("systemd.not_told", extra={"error": str(error)})


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    try:
        if int(environ.get("WATCHDOG_PID", os.getpid())) != os.getpid():
            return None
        return int(environ["WATCHDOG_USEC"]) / 1e6 or None
    except (KeyError, ValueError):
        return None


@dataclass(eq=False)
class Systemd:
    """Sees every event and passes on what `systemctl` shows; `beat` sends the signs of life."""

    picture: Picture
    notifier: Notifier
    _: KW_ONLY
    is_alive: Callable[[float], bool]
    longest_boot: float = LONGEST_BOOT

    def __post_init__(self) -> None:
        self._replicas, self._rank = self.picture.replicas, self.picture.setup.rank
        self._boot_ends = time.monotonic() + self.longest_boot
        self._waits_to_start = False
        self._doing = ""
        """Words of the last STATUS behind what serves."""
        self._is_leaving = False
        self._is_ready = False
        self._reloading = False
        self._silent = False
        self._told, self._told_at = "", 0.0
        """The last STATUS, and its time."""

    def observe(self, event: events.Event) -> None:
        """Pass on what happened; the picture has it already."""
        match event:
            case events.StopRequested():
                self._leave("answering the last requests")
            case events.GenerationLive() | events.PhaseEntered(_, None) if self.picture.follows:
                self._did_a_step()
            case events.GenerationLive():
                self._ready_once()
            case events.GenerationEnded() | events.ReplicaMoved():
                self._tell_again()
            case events.GateChanged():
                self._gate_moved(event)
            case events.Wait(str() as waiting_for, "start"):
                self._waits_to_start = True
                self._tell(f"starting: waiting for {waiting_for}", extension())
            case events.PhaseEntered(revision, Phase() as phase):
                self._phase_entered(revision, phase)
            case events.Progress(revision, phase, done, total) if self._is_time():
                self._tell(self._reloading_to(revision, phase, _share(phase, done, total)))
            case events.AttemptEnd(attempt):
                self._reloading = False
                ready = ["READY=1"] if self._is_ready else [extension()]
                self._doing = _came_of(attempt)
                self._tell(self._describe_serving() + self._doing, *ready)

    async def beat(self) -> None:
        """Send signs of life for as long as the loop turns and the engine is alive."""
        period = min(TICK_SECONDS, (self.notifier.watchdog or TICK_SECONDS * 3) / 3)
        while True:
            self._tick()
            await asyncio.sleep(period)

    def _tick(self) -> None:
        watchdog = self.notifier.watchdog
        is_alive = self.is_alive(watchdog or EXTENSION_SECONDS)
        if not is_alive and not self._silent:
            # Only logged: systemd ends us when it has heard nothing for WatchdogSec.
            log.critical("systemd.engine_silent", extra={"watchdog_seconds": watchdog})
        self._silent = not is_alive
        lines = ["WATCHDOG=1"] if watchdog else []
        may_start = self._waits_to_start or time.monotonic() < self._boot_ends
        if self._reloading or (not self._is_ready and may_start):
            lines.append(extension())
        if is_alive and lines:
            self.notifier.send(*lines)

    def _gate_moved(self, event: events.GateChanged) -> None:
        if event.state is GateState.OPEN:
            self._ready_once()
        elif not self._replicas.serving_count:
            self._leave(event.reason)

    def _leave(self, why: str | None) -> None:
        self._is_leaving = True
        self._tell(f"stopping: {why}", "STOPPING=1")

    def _tell_again(self) -> None:
        """Say what serves now, beside what was said to be done, unless that was just said."""
        status = self._describe_serving() + self._doing
        if self._is_ready and not self._is_leaving and status != self._told:
            self._tell(status)

    def _ready_once(self) -> None:
        has_opened, live = self._replicas.has_opened, self._replicas.live
        if has_opened and live is not None and not self._is_ready:
            self._is_ready = True
            self._tell(self._describe_serving(), "READY=1")

    def _did_a_step(self) -> None:
        """True on a rank that follows: only rank 0 knows how an attempt ends."""
        self._reloading, self._doing = False, ""
        if not self._is_ready:
            self._ready_once()
        elif not self._is_leaving:
            self._tell(self._describe_serving(), "READY=1")

    def _phase_entered(self, revision: Revision, phase: Phase) -> None:
        status = self._reloading_to(revision, phase)
        if not self._is_ready:
            if self._waits_to_start:  # the time it waited for somebody else does not count
                self._waits_to_start = False
                self._boot_ends = time.monotonic() + self.longest_boot
            self._tell(status, extension())
            return
        if self._reloading:
            self._tell(status)
            return
        self._reloading = True
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._tell(status, "RELOADING=1", f"MONOTONIC_USEC={now}", extension())

    def _is_time(self) -> bool:
        """True if the last STATUS is old enough to be replaced by one that says little more."""
        return time.monotonic() - self._told_at >= PROGRESS_STATUS_SECONDS

    def _reloading_to(self, revision: Revision, phase: Phase, share: str = "") -> str:
        doing = f": {DOING_WORDS[phase].format(_name(revision))}{share}"
        if not self._is_ready:
            return f"starting{doing}"
        self._doing = f", reloading{doing}"
        return self._describe_serving() + self._doing

    def _describe_serving(self) -> str:
        live, of = self._replicas.live, len(self._replicas.all)
        if live is None:
            return "starting"
        serving = f"{self._verb()} generation {live.number} ({_name(live.revision)})"
        if self._replicas.serving_count < of > 1:
            serving += f" on {self._replicas.serving_count} of {of} replicas"
        # Requests may still end by their weights, or a comparison with them, or a conversation.
        older = ", ".join(str(generation.number) for generation in self._replicas.older_generations)
        return f"{serving}, still holding {older}" if older else serving

    def _verb(self) -> str:
        """Say what it does with the live generation, and as which of several hosts."""
        rank = self._rank
        if rank is None:
            return "serving"
        return f"{'following' if rank.follows else 'serving'} as rank {rank.own} of {rank.of}:"

    def _tell(self, status: str, *lines: str) -> None:
        """Send a STATUS with some lines. Names come from elsewhere: none may begin a line here."""
        self._told, self._told_at = status, time.monotonic()
        text = "".join(char if char.isprintable() else "?" for char in status)
        self.notifier.send(*lines, f"STATUS={text[:LONGEST_STATUS]}")


def _share(phase: Phase, done: int, total: int) -> str:
    if phase is Phase.WARMING:
        return f" ({done} of {total} batches)"
    return f" ({size(done)} of {size(total)})"


def _came_of(attempt: Attempt) -> str:
    if attempt.outcome is Outcome.LIVE:
        return ""
    why = f": {attempt.reason.code}: {attempt.reason.message}" if attempt.reason else ""
    dry = "dry run " if attempt.dry_run else ""
    return f"; {dry}{ENDED[attempt.outcome]} {_name(attempt.revision)}{why}"


def _name(revision: Revision) -> str:
    return revision.label or revision.id[:12]


def extension() -> str:
    """Return the line that asks systemd for more time, for a start or a reload."""
    return f"EXTEND_TIMEOUT_USEC={int(EXTENSION_SECONDS * 1e6)}"
