"""Runs an operator's command in a session of its own, and ends all of it.

A deadline ends it, and so does a cancel: first it is asked to, then it must. Where this process is
killed, a guard beside it does: its input ends then.
"""

import asyncio
import logging
import os
import pwd
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from hotreload.errors import ConfigError, cut
from hotreload.features.command import process_session
from hotreload.features.command.command import CommandEnd
from hotreload.features.command.process_session import END_SECONDS, kill_session
from hotreload.threads import in_thread, run_to_end

log = logging.getLogger("hotreload.command")

ORDER_SECONDS = 5.0
"""Time in which a command that is asked to end may put its things in order."""
MOST_LINES, MOST_CHARACTERS = 20, 200
"""Bounds on the output that is kept."""
LINE_BYTES = 4 * (MOST_CHARACTERS + 1)
"""Bytes that hold so many characters of a line, and one more by which a cut is seen."""
MOST_LOOKED_AT = 200
"""Lines at the end of a piece among which its last ones are sought: some of those are blank."""
READ_BYTES = 2**16
READ_AGAIN_SECONDS = 0.01
"""Seconds between two pieces: one that writes without end has to wait, and not our clients."""
MOST_READS = 64
"""Pieces that are read after its end: what has left the session may write on."""
FIRST_TO_GO = "500"
"""The kernel is to take the command before the engine when memory is short."""

_Program = subprocess.Popen[bytes]
_Begun = tuple[_Program, _Program]
"""A command, and its guard."""


@dataclass(frozen=True, slots=True)
class Rights:
    """The user that a command runs as, in place of our own."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def rights_of(user: str | None) -> Rights | None:
    """Look a user up; ConfigError if there is none, or we may not become anybody else.

    None, for our own rights, if none is named.
    """
    if user is None:
        return None
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        words = f"[command] user: there is no user {user!r} on this machine"
        raise ConfigError(words) from None
    if os.geteuid() != 0:
        raise ConfigError(
            f"[command] user: only root may run a command as {user}, and hotreload runs "
            f"as uid {os.geteuid()}; leave it out, and the command runs as hotreload does"
        )
    groups = os.getgrouplist(user, entry.pw_gid)
    return Rights(entry.pw_uid, entry.pw_gid, tuple(groups), entry.pw_dir)


async def run_command(
    argv: Sequence[str], *, env: Mapping[str, str], rights: Rights | None, within: float
) -> CommandEnd:
    """Run a command and return how it ended; no process of its session is left."""

    def begin(cancel: threading.Event) -> _Begun:
        program = subprocess.Popen(
            [*argv],
            env=dict(env),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **_as_user(rights),
        )
        try:
            return program, _guard_of(program.pid)
        except BaseException:
            _kill(program)
            raise

    try:
        program, guard = await in_thread(
            begin,
            discard=_discard,
            leave_as=f"a start of {argv[0]}",
            is_read=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError) as fault:
        return CommandEnd(None, why=f"could not be started: {fault}")
    _take_first(program.pid)
    with _read_output(program) as lines:
        over = asyncio.create_task(_over(program.pid), name="the end of a command")
        try:
            await asyncio.wait({over}, timeout=within)
            in_time = over.done()
        finally:
            await run_to_end(_end_session(program, guard, over))
        if in_time:
            over.result()
    return CommandEnd(*_outcome(program.returncode, in_time, within, lines))


def _guard_of(session: int) -> _Program:
    """Start the guard, which kills this session when our process ends in any way."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", process_session.__file__, str(session)],
        env={},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _as_user(rights: Rights | None) -> dict[str, Any]:
    if rights is None:
        return {}
    return {"user": rights.uid, "group": rights.gid, "extra_groups": rights.groups}


def _outcome(
    code: int | None, in_time: bool, within: float, lines: "LastLines"
) -> tuple[int | None, tuple[str, ...], str]:
    if not in_time:
        return None, lines.so_far, f"took longer than {within:g} s ([command] timeout)"
    if code is None or code < 0:
        name = signal.strsignal(-code) if code else None
        return None, lines.so_far, f"was ended by a signal: {name or 'an unknown one'}"
    return code, lines.so_far, ""


async def _over(pid: int) -> None:
    """Wait for the process's end without reaping: its session's number stays taken."""

    def wait() -> None:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    await in_thread(lambda cancel: wait(), leave_as=f"process {pid}", is_read=False)


async def _end_session(program: _Program, guard: _Program, over: "asyncio.Task[None]") -> None:
    """End the session: ask its processes to end, then kill those that are left."""
    if not over.done():
        _signal(program, signal.SIGTERM)
        await asyncio.wait({over}, timeout=ORDER_SECONDS)
    _signal(program, signal.SIGKILL)
    left = await in_thread(lambda cancel: kill_session(program.pid, END_SECONDS))
    _end(guard)  # before the session's number can be another one's
    await asyncio.wait({over}, timeout=END_SECONDS)
    over.cancel()  # what not even that ends is left behind
    if program.poll() is None or left:
        log.error("command.does_not_end", extra={"pid": program.pid, "left": left})


def _discard(begun: _Begun) -> None:
    """End a program that started after its attempt was given up."""
    program, guard = begun
    _kill(program)
    _end(guard)


def _kill(program: _Program) -> None:
    with program:
        kill_session(program.pid, END_SECONDS)


def _end(guard: _Program) -> None:
    with guard:
        guard.kill()


def _signal(program: _Program, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(program.pid, number)


def _take_first(pid: int) -> None:
    with suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text(FIRST_TO_GO)


class LastLines:
    """The last lines of an output of any size, each cut."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._rest = b""

    def take(self, some: bytes) -> None:
        """Take the next piece of the output; only its last lines are looked at."""
        *whole, rest = (self._rest + some).rsplit(b"\n", MOST_LOOKED_AT)
        last = islice(filter(None, map(_as_shown, reversed(whole))), MOST_LINES)
        self._lines.extend(reversed([*last]))
        self._rest = rest[-READ_BYTES:]

    @property
    def so_far(self) -> tuple[str, ...]:
        """The lines so far."""
        return tuple([*self._lines, *filter(None, [_as_shown(self._rest)])][-MOST_LINES:])


def _as_shown(line: bytes) -> str:
    """Return a line as a terminal shows it in the end: the last state of a progress bar."""
    last = line.rstrip().rpartition(b"\r")[2][:LINE_BYTES].decode(errors="replace")
    begin = last[: MOST_CHARACTERS + 1]
    shown = "".join(each if each.isprintable() else " " for each in begin)
    return cut(shown, MOST_CHARACTERS).rstrip()


@contextmanager
def _read_output(program: _Program) -> Iterator[LastLines]:
    """Read the output of a program in pieces as it comes, and the rest at the end."""
    assert program.stdout is not None
    loop, pipe, lines = asyncio.get_running_loop(), program.stdout.fileno(), LastLines()
    next_piece: asyncio.TimerHandle | None = None
    os.set_blocking(pipe, False)

    def read() -> bytes | None:
        """Return a piece of output: empty once no process can write, None if none is there yet."""
        try:
            some = os.read(pipe, READ_BYTES)
        except BlockingIOError:
            return None
        lines.take(some)
        return some

    def read_on() -> None:
        """Read a piece, and the next one after a pause, until no process can write."""
        nonlocal next_piece
        loop.remove_reader(pipe)
        if read() != b"":
            next_piece = loop.call_later(READ_AGAIN_SECONDS, loop.add_reader, pipe, read_on)

    loop.add_reader(pipe, read_on)
    try:
        yield lines
        for _ in range(MOST_READS):
            if not read():
                break
    finally:
        if next_piece is not None:
            next_piece.cancel()
        loop.remove_reader(pipe)
        program.stdout.close()
