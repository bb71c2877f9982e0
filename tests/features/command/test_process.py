"""A command runs as a process of its own, and nothing of it is left."""

import asyncio
import os
import pwd
import sys
from cProfile import Profile
from pathlib import Path

import pytest

from hotreload.errors import ConfigError
from hotreload.features.command import process as command_process
from hotreload.features.command.command import CommandEnd
from hotreload.features.command.process import LastLines, Rights, rights_of, run_command
from tests.children import is_there
from tests.waiting import PATIENCE, turn_until

ENV = {"PATH": os.defpath, "WORD": "told"}


async def run(*argv: str, within: float = PATIENCE, rights: Rights | None = None) -> CommandEnd:
    return await run_command(argv, env=ENV, rights=rights, within=within)


async def python(program: str, within: float = PATIENCE) -> CommandEnd:
    return await run(sys.executable, "-c", program, within=within)


async def gone(*pids: str) -> None:
    """Until these are gone; who is killed needs a moment for it."""
    await turn_until(lambda: not any(is_there(int(pid)) for pid in pids), pause=0.01)


@pytest.mark.parametrize("code", [0, 1, 75, 255])
async def test_its_exit_code_and_its_last_lines_are_told(code: int) -> None:
    end = await run("sh", "-c", f"echo one; echo two >&2; printf three; exit {code}")
    assert end == CommandEnd(code, ("one", "two", "three"))


async def test_it_is_told_what_it_needs_and_nothing_of_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("A_SECRET_OF_OURS", "x")
    end = await run("/usr/bin/env")
    assert {"WORD=told", f"PATH={os.defpath}"} == {*end.lines}


async def test_it_reads_nothing_and_begins_where_nothing_of_ours_lies() -> None:
    end = await run("sh", "-c", "cat; pwd")
    assert end == CommandEnd(0, ("/",))


@pytest.mark.parametrize("argv", [("/no/such/command",), ("/etc/passwd",), ("nul\0",)])
async def test_what_cannot_be_started_gives_no_exit_code(argv: tuple[str]) -> None:
    end = await run(*argv)
    assert (end.code, end.lines) == (None, ())
    assert end.why.startswith("could not be started: ")


async def test_a_deadline_ends_all_of_it_and_its_last_lines_are_told() -> None:
    end = await run("sh", "-c", "sleep 600 & echo $! $$; wait", within=0.5)
    assert end.code is None
    assert end.why == "took longer than 0.5 s ([command] timeout)"
    await gone(*end.lines[0].split())


async def test_what_does_not_want_to_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_process, "ORDER_SECONDS", 0.2)
    script = "trap '' TERM; sleep 600 & echo $! $$; while :; do sleep 600; done"
    end = await run("sh", "-c", script, within=0.5)
    assert end.code is None
    await gone(*end.lines[0].split())


async def test_what_it_leaves_behind_is_killed_when_it_ends() -> None:
    end = await run("sh", "-c", "sleep 600 & echo $!; exit 3")
    assert end.code == 3
    await gone(end.lines[0])


@pytest.mark.parametrize("leaving", ["timeout 60", "set -m;"])
async def test_what_has_left_its_process_group_is_killed_too(leaving: str, tmp_path: Path) -> None:
    told = tmp_path / "told"
    left = f"{leaving} sh -c 'echo $$; >{told}; exec sleep 59' & echo $!"
    begun = f"{left}; until [ -e {told} ]; do sleep 0.01; done; rm {told}"
    end = await run("bash", "-c", f"{begun}; exit 3")
    assert end.code == 3
    assert not any(is_there(int(pid)) for pid in end.lines)
    late = await run("bash", "-c", f"{begun}; wait", within=1.0)
    assert (late.code, len(late.lines)) == (None, 2)
    assert not any(is_there(int(pid)) for pid in late.lines)


async def test_a_cancel_ends_it(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    running = asyncio.create_task(
        run("sh", "-c", f"echo $$ > {told}.; mv {told}. {told}; sleep 600")
    )
    await turn_until(told.exists, pause=0.01)
    pid = int(told.read_text())
    assert is_there(pid)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not is_there(pid)


async def test_one_that_a_signal_ends_has_not_judged() -> None:
    end = await run("sh", "-c", "echo so far; kill -KILL $$")
    assert end == CommandEnd(None, ("so far",), "was ended by a signal: Killed")


async def test_however_much_it_writes_a_few_lines_are_kept() -> None:
    end = await python("for n in range(40000): print(f'{n:_>300}')")
    assert len(end.lines) == command_process.MOST_LINES
    assert all(len(line) == command_process.MOST_CHARACTERS + 1 for line in end.lines)
    endless = await run("yes", "x" * 100, within=0.5)
    assert endless.lines == ("x" * 100,) * command_process.MOST_LINES


@pytest.mark.parametrize("line", [b"y", b"x" * 300, b"", b" ", b"1%\r" * 99, b"x" * 65535, b"\xff"])
def test_of_a_piece_no_more_is_looked_at_than_its_last_lines_need(line: bytes) -> None:
    """Counted in calls, each of which takes one line or one character."""
    lines, piece = LastLines(), (line + b"\n") * (command_process.READ_BYTES // (len(line) + 1))
    with Profile() as profile:
        lines.take(piece)
    of_each = 2 * command_process.MOST_CHARACTERS + 20
    most = command_process.MOST_LINES * of_each + 10 * command_process.MOST_LOOKED_AT
    assert sum(each.callcount for each in profile.getstats()) <= most


async def test_one_that_writes_without_end_is_read_a_piece_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command_process, "READ_AGAIN_SECONDS", 60.0)
    pieces = list[bytes]()
    monkeypatch.setattr(LastLines, "take", lambda lines, some: pieces.append(some))
    await run("yes", within=0.5)
    assert 0 < len(pieces) <= 1 + command_process.MOST_READS


async def test_after_a_pause_it_is_read_on() -> None:
    end = await python("print('x\\n' * 200000); print('last')")
    assert end == CommandEnd(0, (*["x"] * 19, "last"))


def test_a_line_is_kept_as_a_terminal_shows_it_at_its_end() -> None:
    lines = LastLines()
    for piece in (
        b"asked  1%\rasked 5",
        b"0%\rasked 99%\n\n",
        b"caf\xc3",
        b"\xa9 \x1b[1mbold\r\nend\xc2\xa0",
    ):
        lines.take(piece)
    assert lines.so_far == ("asked 99%", "café  [1mbold", "end")
    lines.take(b"\n" + "\U0001f600".encode() * 201)
    assert lines.so_far[-1] == "\U0001f600" * 200 + "…"


def test_a_user_that_there_is_not_is_a_wrong_setting() -> None:
    with pytest.raises(ConfigError, match="there is no user 'no-such-user'"):
        rights_of("no-such-user")


def test_only_root_becomes_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    name = pwd.getpwuid(0).pw_name
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(
        ConfigError, match="only root may run a command as root, and hotreload runs"
    ):
        rights_of(name)
    assert rights_of(None) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
async def test_it_runs_with_the_rights_of_its_user_and_no_others() -> None:
    nobody = pwd.getpwnam("nobody")
    end = await run("sh", "-c", "id -u; id -g; id -G", rights=rights_of("nobody"))
    groups = " ".join(map(str, os.getgrouplist("nobody", nobody.pw_gid)))
    assert end.lines == (str(nobody.pw_uid), str(nobody.pw_gid), groups)
