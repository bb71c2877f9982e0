"""The verbs that tell the daemon what shall be live: words and exit codes."""

import asyncio
import dataclasses
import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

from hotreload.errors import (
    Busy,
    EngineLost,
    HotReloadError,
    NotSaved,
    NotServing,
    SourceUnavailable,
)
from hotreload.events import StateSaved
from hotreload.types import By, LoadFacts, Noise, Outcome, Phase, Reason
from tests.cli.conftest import Command
from tests.evidence import judged
from tests.server.world import World, attempt
from tests.waiting import PATIENCE

NAN = Reason("nonfinite", "lm_head: 3 NaN, and 2 more", ("lm_head: 3 NaN", "norm: 1 NaN", "q: NaN"))


def of_the_daemon(hotreload: Command) -> str:
    return f"of the daemon on {hotreload.folder / 'hotreload.sock'}, pid {os.getpid()}"


async def test_a_reload_that_went_live_says_so(world: World, hotreload: Command) -> None:
    world.control.outcome = attempt()
    said = await hotreload("reload", "--wait")
    assert (said.code, said.err) == (0, "")
    first, last = said.out.splitlines()
    assert first.startswith("step-2 (bbbb2222) is live as generation 2; it took 1.2 s, ")
    assert last == f"  {of_the_daemon(hotreload)}"
    assert world.control.asked == [("reload", None, False)]


async def test_a_rejected_reload_exits_1_with_every_finding_once(
    world: World, hotreload: Command
) -> None:
    world.control.outcome = attempt(Outcome.REJECTED, NAN)
    said = await hotreload("reload", "--wait", "--force")
    assert (said.code, said.out) == (1, "")
    assert said.err.splitlines() == [
        "hotreload: step-2 (bbbb2222) was rejected: nonfinite: lm_head: 3 NaN, and 2 more",
        "  norm: 1 NaN",
        "  q: NaN",
        "  generation 1 goes on answering",
        f"  {of_the_daemon(hotreload)}",
    ]
    assert world.control.asked == [("reload", None, True)]


@pytest.mark.parametrize(
    ("outcome", "code", "words"),
    [
        (Outcome.POSTPONED, 1, "was put off"),
        (Outcome.SUPERSEDED, 1, "was let go for a newer one"),
        (Outcome.LOST, 70, "killed the engine"),
    ],
)
async def test_every_other_end_has_its_words_and_code(
    world: World, hotreload: Command, outcome: Outcome, code: int, words: str
) -> None:
    world.control.outcome = attempt(outcome, Reason("oom", "no room"))
    said = await hotreload("reload", "--wait", "--json")
    assert said.code == code
    assert words in said.err
    assert json.loads(said.out)["outcome"] == outcome


DRY = dataclasses.replace(
    attempt(Outcome.PASSED),
    dry_run=True,
    phases={Phase.VALIDATING: 0.2, Phase.STAGING: 1.0, Phase.PROBING: 0.3},
    loading=LoadFacts("own", "", 12, 18, 600, 12, 0.04, "layers.3.down_proj"),
)


async def test_a_dry_run_prints_its_report(world: World, hotreload: Command) -> None:
    world.control.outcome = DRY
    said = await hotreload("reload", "step-2", "--dry-run")
    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines() == [
        "dry run: step-2 (bbbb2222) would go live",
        "  checks  passed",
        "  loaded  by our own loader",
        "  change  12 of 30 leaves changed, most: layers.3.down_proj by 4 %",
        "  probes  passed",
        "  times   validating 200 ms, staging 1.0 s, probing 300 ms",
        "  nothing has changed: generation 1 goes on answering",
        f"  {of_the_daemon(hotreload)}",
    ]
    assert world.control.asked == [("rehearse", "step-2", False)]


async def test_a_dry_run_says_what_it_could_not_prove(world: World, hotreload: Command) -> None:
    phases = {Phase.VALIDATING: 0.2, Phase.STAGING: 1.0}
    dry = dataclasses.replace(DRY, phases=phases)
    world.control.outcome = judged(dry, unproven="it has no lanes")
    said = await hotreload("reload", "--dry-run")
    assert said.code == 0
    assert "step-2 (bbbb2222) would go live as far as can be told" in said.out
    assert "  probes  not asked, so their answers are not known: it has no lanes\n" in said.out


async def test_a_dry_run_of_what_would_be_refused_exits_1_with_the_findings(
    world: World, hotreload: Command
) -> None:
    phases = {Phase.VALIDATING: 0.2}
    refused = dataclasses.replace(DRY, outcome=Outcome.REJECTED, reason=NAN, phases=phases)
    world.control.outcome = dataclasses.replace(refused, loading=None)
    said = await hotreload("reload", "step-2", "--dry-run")
    assert (said.code, said.err) == (1, "")
    first, *rest = said.out.splitlines()
    assert first == (
        "dry run: step-2 (bbbb2222) would be refused: nonfinite: lm_head: 3 NaN, and 2 more"
    )
    assert rest[:4] == [
        "  checks  lm_head: 3 NaN",
        "          norm: 1 NaN",
        "          q: NaN",
        "  probes  not asked",
    ]


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


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (Busy("another reload is under way"), 4),
        (SourceUnavailable("/ckpt/step-9 is not there"), 1),
        (NotServing("the engine is starting", code="booting"), 6),
        (EngineLost("nobody knows what is live"), 70),
    ],
)
async def test_a_wish_that_is_not_accepted_has_its_exit_code(
    world: World, hotreload: Command, refusal: HotReloadError, code: int
) -> None:
    world.control.refusal = refusal
    said = await hotreload("reload", "--wait")
    assert (said.code, said.err) == (code, f"hotreload: {refusal}\n")


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


async def test_noise_that_was_refused_exits_1(world: World, hotreload: Command) -> None:
    world.control.outcome = attempt(Outcome.REJECTED, Reason("incompatible", "rounded away"))
    said = await hotreload("perturb", "--scale", "1e-9")
    assert (said.code, said.out) == (1, "")
    assert "incompatible: rounded away" in said.err
    assert (await hotreload("perturb", "--scale", "-1")).code == 2


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


async def test_a_pin_that_a_restart_would_forget_exits_1(world: World, hotreload: Command) -> None:
    world.control.refusal = NotSaved("not pinned: a restart would forget it, as it is read-only")
    said = await hotreload("pin")
    assert (said.code, said.out, said.err) == (1, "", f"hotreload: {world.control.refusal}\n")


async def test_a_pin_that_is_not_settled_in_time_exits_5(world: World, hotreload: Command) -> None:
    world.control.may_accept.clear()
    said = await hotreload("pin", "--timeout", "0.05")
    assert (said.code, said.out) == (5, "")
    assert "an earlier order is not done" in said.err


@pytest.mark.parametrize("verb", ["reload --wait", "rollback", "perturb"])
async def test_what_went_live_and_a_restart_forgets_exits_1_and_says_so(
    world: World, hotreload: Command, verb: str
) -> None:
    world.control.outcome = dataclasses.replace(attempt(), fingerprints=("aaaa", "bbbb"))
    world.events.publish(StateSaved("state.json cannot be written: read-only"))
    said = await hotreload(*verb.split())
    assert said.code == 1
    assert "is live as generation 2" in said.out
    assert said.err == (
        "hotreload: it is live, but a restart forgets it: state.json cannot be written: read-only\n"
    )


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
    assert "nobody listens there any more" in said.err
