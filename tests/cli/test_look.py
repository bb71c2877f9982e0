"""The verbs that ask the daemon how things are."""

import asyncio
import json
import re
import signal
import time
from dataclasses import replace
from datetime import datetime

import pytest

from hotreload.attempts import By
from hotreload.cli.client.look import check_code
from hotreload.events import (
    AttemptFinished,
    Event,
    OperatorAsked,
    RevisionWanted,
    SourceScanned,
    StateSaved,
    TroubleNews,
    Wait,
)
from hotreload.types import Outcome, Reason, Revision
from tests.cli.conftest import Command
from tests.server.world import SECOND, World, attempt
from tests.waiting import PATIENCE

NAN = Reason("nonfinite", "tensor 'lm_head' holds NaN")


def row(text: str, name: str) -> str:
    """The value of a row of the status block, which follows the sentence."""
    lines = text.splitlines()[2:]
    return next(line for line in lines if line.startswith(name)).split(maxsplit=1)[1]


async def test_status_as_json_is_what_the_daemon_says(world: World, hotreload: Command) -> None:
    said = await hotreload("status", "--json")
    assert json.loads(said.out) == world.view.status()


@pytest.mark.parametrize(
    ("happens", "code", "lines"),
    [
        ((), 0, ""),
        (
            (StateSaved("the disk is full"),),
            1,
            "StateNotSaved: a restart would forget what changes: the disk is full: "
            "hotreload explain StateNotSaved\n",
        ),
        (
            (TroubleNews("files_gone", "gone", "x"), SourceScanned("rescan", "EIO")),
            1,
            "files_gone: gone: hotreload explain files_gone\n"
            "SourceDead: the source does not answer: EIO: hotreload explain SourceDead\n",
        ),
    ],
)
async def test_a_check_is_quiet_when_all_is_well_and_has_a_line_for_each_fault(
    world: World, hotreload: Command, happens: tuple[Event, ...], code: int, lines: str
) -> None:
    for event in happens:
        world.events.publish(event)
    said = await hotreload("status", "--check")
    assert (said.code, said.out, said.err) == (code, lines, "")
    as_json = json.loads((await hotreload("status", "--check", "--json")).out)
    assert as_json == world.view.status()["summary"]


@pytest.mark.parametrize(
    ("why", "code", "words"),
    [
        ("stopping", 6, "no request is answered: stopping: why\n"),
        ("engine_lost", 70, "no request is answered: lost: why: hotreload explain EngineLost\n"),
    ],
)
async def test_a_check_has_codes_of_its_own_for_who_answers_nobody(
    world: World, hotreload: Command, why: str, code: int, words: str
) -> None:
    world.gate.seal("why", code=why)
    said = await hotreload("status", "--check")
    assert (said.code, said.out) == (code, words)


async def test_a_check_of_a_daemon_that_is_away_exits_3(hotreload: Command) -> None:
    said = await hotreload("status", "--check")
    assert (said.code, said.out) == (3, "")


@pytest.mark.parametrize(
    ("state", "findings", "code"),
    [
        *((state, [], 0) for state in ("serving", "reloading", "following")),
        *((state, ["x"], 1) for state in ("serving", "reloading", "following")),
        *((state, found, 6) for state in ("booting", "stopping") for found in ([], ["x"])),
        *(("lost", found, 70) for found in ([], ["x"])),
    ],
)
def test_each_state_has_its_exit_code(state: str, findings: list[str], code: int) -> None:
    assert check_code({"state": state}, findings) == code


async def test_a_name_that_would_drive_the_terminal_does_not(
    world: World, hotreload: Command
) -> None:
    world.events.publish(Wait("step-\x1b[31m9\n"))
    said = await hotreload("status")
    assert "\x1b" not in said.out
    assert "step-\\x1b[31m9\\n" in said.out


async def test_of_attempts_and_pins_together_the_newest_n_are_told_in_both_forms(
    world: World, hotreload: Command
) -> None:
    for late in range(5):
        world.events.publish(AttemptFinished(replace(attempt(), finished_at=1.7e9 + late), SECOND))
    for verb, late in (("pin", 10), ("unpin", 20)):
        world.events.publish(OperatorAsked(By(verb, 0, 77, 1.7e9 + late)))
    assert len((await hotreload("history", "-n", "3")).out.splitlines()) == 4
    said = json.loads((await hotreload("history", "-n", "3", "--json")).out)
    assert [by["verb"] for by in said["pins"]] == ["unpin", "pin"]
    assert [past["finished_at"] for past in said["attempts"]] == ["2023-11-14T22:13:24.000Z"]


@pytest.mark.parametrize("count", ["0", "-1", "1001", "all"])
async def test_how_much_of_the_history_is_a_count_within_bounds(
    hotreload: Command, count: str
) -> None:
    said = await hotreload("history", "-n", count)
    assert (said.code, said.out) == (2, "")
    assert re.search(r"from 1 to 1000, not|'all' is no whole number", said.err)


async def test_a_daemon_that_is_older_than_the_command_is_understood(
    world: World, hotreload: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an upgrade that was not followed by a restart."""
    world.events.publish(AttemptFinished(attempt(), SECOND))
    new = (
        "summary",
        "troubles",
        "noise",
        "overruled",
        "pin",
        "state_file",
        "settings",
        "mode",
        "mode_reason",
        "answering",
        "rows",
    )
    status = {name: value for name, value in world.view.status().items() if name not in new}
    for name in ("by", "told"):
        del status["last_attempt"][name]
    monkeypatch.setattr(world.view.documents.status, "snapshot", lambda: status)
    monkeypatch.setattr(
        world.view.documents.history, "snapshot", lambda: {"attempts": [status["last_attempt"]]}
    )
    for verb in ("status", "history", "top"):
        said = await hotreload(verb)
        assert (said.code, said.err) == (0, "")
        assert "step-2" in said.out


async def test_checksums_fails_when_the_weights_changed_under_us(
    world: World, hotreload: Command
) -> None:
    world.engine.damage["lm_head"] = 12
    said = await hotreload("checksums", "--json")
    assert said.code == 1
    assert json.loads(said.out)["changed"] == ["lm_head"]
    assert "lm_head is no longer what went live" in said.err


async def test_events_come_as_they_happen(world: World, hotreload: Command) -> None:
    observers = len(world.events._observers)
    process = await hotreload.start("events")
    assert process.stdout is not None
    await world.until(lambda: len(world.events._observers) > observers)
    world.events.publish(RevisionWanted(Revision("cccc3333", "step-3")))
    line = await asyncio.wait_for(process.stdout.readline(), PATIENCE)
    day, at, *told = line.decode().split()
    local = datetime.strptime(f"{day} {at}", "%Y-%m-%d %H:%M:%S").astimezone()
    assert abs(time.time() - local.timestamp()) < PATIENCE
    assert told == ["revision.wanted", "revision=cccc3333", "label=step-3"]
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert (process.returncode, err) == (130, b"")


async def test_the_end_of_an_attempt_is_one_line_of_few_fields(
    world: World, hotreload: Command
) -> None:
    observers = len(world.events._observers)
    process = await hotreload.start("events")
    await world.until(lambda: len(world.events._observers) > observers)
    back = By("rollback", 0, 77, 1.7e9, "it talks too much")
    for told in (replace(attempt(), by=back), attempt(Outcome.REJECTED, NAN)):
        world.events.publish(AttemptFinished(told, SECOND))
    world.server.stop()
    out, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
    assert [line.split(maxsplit=2)[2] for line in out.decode().splitlines()] == [
        "reload.live          revision=bbbb2222 label=step-2 generation=2 by=rollback",
        "reload.rejected      revision=bbbb2222 label=step-2 "
        "reason=\"nonfinite: tensor 'lm_head' holds NaN\"",
    ]


async def test_events_leave_looks_by_the_clock_out_unless_they_fail_or_are_asked_for(
    world: World, hotreload: Command
) -> None:
    observers = len(world.events._observers)
    usual, whole = [await hotreload.start("events", "--json", *more) for more in ((), ("--all",))]
    await world.until(lambda: len(world.events._observers) > observers + 1)
    for event in (SourceScanned("rescan"), SourceScanned("event"), SourceScanned("rescan", "EIO")):
        world.events.publish(event)
    world.server.stop()
    told = []
    for process in (usual, whole):
        out, _ = await asyncio.wait_for(process.communicate(), PATIENCE)
        lines = [json.loads(line) for line in out.splitlines()]
        told.append([(each["cause"], each["error"]) for each in lines if "cause" in each])
    assert told == [
        [("event", None), ("rescan", "EIO")],
        [("rescan", None), ("event", None), ("rescan", "EIO")],
    ]


async def test_events_end_with_the_daemon(world: World, hotreload: Command) -> None:
    observers = len(world.events._observers)
    process = await hotreload.start("events", "--all", "--json")
    await world.until(lambda: len(world.events._observers) > observers)
    world.events.publish(SourceScanned("rescan"))
    world.server.stop()
    out, err = await asyncio.wait_for(process.communicate(), PATIENCE)
    event = json.loads(out)
    assert event["cause"] == "rescan"
    assert abs(time.time() - datetime.fromisoformat(event["at"]).timestamp()) < PATIENCE
    assert (process.returncode, b"stopping" in err) == (0, True)


async def test_a_reader_that_leaves_the_pipe_is_no_error(world: World, hotreload: Command) -> None:
    observers = len(world.events._observers)
    process = await hotreload.start("events", "--all")
    await world.until(lambda: len(world.events._observers) > observers)
    process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]
    while process.returncode is None:
        world.events.publish(SourceScanned("rescan"))
        await asyncio.sleep(0.005)
    assert process.stderr is not None
    assert (process.returncode, await process.stderr.read()) == (141, b"")


@pytest.mark.parametrize("verb", ["status", "ls", "history", "log", "checksums", "events"])
async def test_without_a_daemon_every_verb_names_the_socket_and_exits_3(
    hotreload: Command, verb: str
) -> None:
    said = await hotreload(verb)
    assert (said.code, said.out) == (3, "")
    assert hotreload.environ["HOTRELOAD_SOCKET"] in said.err
    assert "$HOTRELOAD_SOCKET" in said.err
    assert "there is no such socket" in said.err
