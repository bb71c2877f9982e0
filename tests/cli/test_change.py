"""The verbs that tell the daemon what shall be live: words and exit codes."""

import asyncio
import dataclasses
import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

from hotreload.attempts import By
from hotreload.types import Noise, Reason
from tests.cli.conftest import Command
from tests.server.world import World, attempt
from tests.waiting import PATIENCE

NAN = Reason("nonfinite", "lm_head: 3 NaN, and 2 more", ("lm_head: 3 NaN", "norm: 1 NaN", "q: NaN"))


def of_the_daemon(hotreload: Command) -> str:
    return f"of the daemon on {hotreload.folder / 'hotreload.sock'}, pid {os.getpid()}"


async def test_without_wait_a_reload_is_asked_for_and_no_more(
    world: World, hotreload: Command
) -> None:
    said = await hotreload("reload", "step-2")
    assert (said.code, world.control.asked) == (0, [("reload", "step-2", False)])
    assert "hotreload status" in said.out


async def test_a_path_that_exists_is_made_absolute(world: World, hotreload: Command) -> None:
    (hotreload.folder / "step-2").mkdir()
    await hotreload("reload", "step-2")
    await hotreload("reload", "/elsewhere/step-3")
    names = [name for _, name, _ in world.control.asked]
    assert names == [str(hotreload.folder / "step-2"), "/elsewhere/step-3"]


async def test_a_branch_is_one_though_a_folder_of_its_name_lies_here(
    world: World, hotreload: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("main", "feature/x"):
        (hotreload.folder / name).mkdir(parents=True)
    known = world.view.status()
    hub = {**known, "source": {**known["source"], "kind": "huggingface"}}
    monkeypatch.setattr(world.view.documents.status, "snapshot", lambda: hub)
    for name in ("main", "feature/x", "./main"):
        await hotreload("reload", name)
    names = [name for _, name, _ in world.control.asked]
    assert names == ["main", "feature/x", str(hotreload.folder / "main")]


async def test_what_is_written_like_a_path_is_one_whether_it_is_there_or_not(
    world: World, hotreload: Command
) -> None:
    hotreload.environ["HOME"] = "/home/somebody"
    for name in ("./step-9", "~/step-9", "step-9"):
        await hotreload("reload", name)
    names = [name for _, name, _ in world.control.asked]
    assert names == [str(hotreload.folder / "step-9"), "/home/somebody/step-9", "step-9"]


async def test_a_timeout_exits_5_and_the_attempt_goes_on(world: World, hotreload: Command) -> None:
    said = await hotreload("reload", "--wait", "--timeout", "0.05")
    assert (said.code, said.out) == (5, "")
    assert "the attempt goes on" in said.err
    assert world.control.promise is not None
    assert not world.control.promise.done()


async def test_a_rollback_is_told_as_one(world: World, hotreload: Command) -> None:
    world.control.outcome = dataclasses.replace(attempt(), by=By("rollback", 0, 77, 1.7e9))
    said = await hotreload("rollback", "--reason", "it talks too much")
    assert said.out.startswith("rolled back to step-2 (bbbb2222) as generation 2; it took 1.2 s, ")


async def test_rollback_waits_for_its_outcome(world: World, hotreload: Command) -> None:
    world.control.outcome = attempt()
    assert (await hotreload("rollback")).code == 0
    said = await hotreload("rollback", "1")
    assert "is live as generation 2" in said.out
    asked = [(verb, name) for verb, name, _ in world.control.asked]
    assert asked == [("rollback", None), ("rollback", 1)]


async def test_perturb_tells_the_checksums_before_and_after(
    world: World, hotreload: Command
) -> None:
    world.control.outcome = dataclasses.replace(attempt(), fingerprints=("aaaa", "bbbb"))
    said = await hotreload("perturb", "--seed", "7", "--scale", "0.5", "--num-leaves", "2")
    assert (said.code, said.err) == (0, "")
    first, which, *rest = said.out.splitlines()
    assert "is live as generation 2" in first
    assert which == f"  {of_the_daemon(hotreload)}"
    assert [line.split() for line in rest] == [
        ["checksum", "before", "aaaa"],
        ["checksum", "after", "bbbb"],
    ]
    assert json.loads((await hotreload("perturb", "--json")).out)["checksum_after"] == "bbbb"
    noises = [noise for _, noise, _ in world.control.asked]
    assert noises == [Noise(7, 0.5, 2), Noise()]


async def test_pin_and_unpin_say_what_they_did(world: World, hotreload: Command) -> None:
    pinned = (await hotreload("pin", "--reason", "evaluation")).out.splitlines()
    assert pinned[0].startswith("pinned: generation 1 stays")
    assert pinned[1] == f"  {of_the_daemon(hotreload)}"
    said = json.loads((await hotreload("unpin", "--json")).out)
    assert (said["ok"], said["pinned"]) == (True, False)
    assert said["daemon"] == {
        "pid": os.getpid(),
        "socket": str(hotreload.folder / "hotreload.sock"),
    }
    assert [by.reason for by in world.control.by] == ["evaluation", ""]
    assert [verb for verb, _, _ in world.control.asked] == ["pin", "unpin"]


@pytest.mark.parametrize(
    "args",
    [["rollback", "one"], ["reload", "--timeout", "-1"], ["reload", "--timeout", "x"], ["frob"]],
)
async def test_usage_errors_exit_2(hotreload: Command, args: list[str]) -> None:
    said = await hotreload(*args)
    assert (said.code, said.out) == (2, "")
    assert "usage: hotreload" in said.err


async def test_a_config_that_is_given_beats_a_socket_that_was_exported(
    world: World, hotreload: Command, tmp_path: Path
) -> None:
    hotreload.environ["HOTRELOAD_SOCKET"] = str(tmp_path / "another.sock")
    config = tmp_path / "this.toml"
    config.write_text(f'[server]\nsocket = "{world.path}"\n')
    assert (await hotreload("pin")).code == 3
    said = await hotreload("pin", "--config", str(config))
    assert (said.code, said.err) == (0, "")
    assert of_the_daemon(hotreload) in said.out
    assert [verb for verb, _, _ in world.control.asked] == ["pin"]


async def test_a_pin_that_is_not_settled_in_time_exits_5(world: World, hotreload: Command) -> None:
    world.control.may_accept.clear()
    said = await hotreload("pin", "--timeout", "0.05")
    assert (said.code, said.out) == (5, "")
    assert "an earlier order is not done" in said.err


@pytest.mark.parametrize(
    ("typed", "more", "code"),
    [("n\n", [], 1), ("\n", [], 1), ("yes\n", [], 0), ("", ["--yes"], 0)],
)
async def test_on_a_terminal_noise_is_asked_about_before_it_answers_anybody(
    world: World, hotreload: Command, typed: str, more: list[str], code: int
) -> None:
    world.control.outcome = dataclasses.replace(attempt(), fingerprints=("aaaa", "bbbb"))
    ours, theirs = os.openpty()
    os.write(ours, typed.encode())
    process = await hotreload.start("perturb", *more, stdin=theirs, stderr=theirs)
    async with asyncio.timeout(PATIENCE):
        await process.communicate()
    os.close(theirs)
    said = await asyncio.to_thread(all_on, ours)
    assert process.returncode == code
    assert (f"everybody who asks {hotreload.folder / 'hotreload.sock'}" in said) == (not more)
    assert ("nothing was changed" in said) == (code == 1)
    assert len(world.control.asked) == (code == 0)


def all_on(terminal: int) -> str:
    """What was written on it, now that nobody writes there any more."""
    said = b""
    with suppress(OSError), os.fdopen(terminal, "rb", buffering=0) as stream:
        while piece := stream.read(4096):
            said += piece
    return said.decode()


async def test_a_daemon_that_died_is_told_from_one_that_never_was(
    hotreload: Command, tmp_path: Path
) -> None:
    from hotreload.server.http.server_sockets import bind_unix

    bind_unix(tmp_path / "hotreload.sock").close()
    said = await hotreload("pin")
    assert said.code == 3
    assert "no process listens there now" in said.err
