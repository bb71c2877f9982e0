"""The verbs that ask the daemon how things are."""

import asyncio
import json
import re
import signal
import time
from dataclasses import replace
from datetime import datetime

import pytest

from hotreload.cli.exits import check_code
from hotreload.events import (
    AttemptFinished,
    Event,
    ModeChosen,
    OperatorAsked,
    RevisionWanted,
    SettingsRead,
    SourceScanned,
    StateSaved,
    TroubleNews,
    Wait,
)
from hotreload.types import (
    NOISY,
    AnsweringGeneration,
    By,
    Generation,
    Mode,
    Outcome,
    Reason,
    Refusal,
    Revision,
)
from tests.cli.conftest import Command
from tests.server.world import FIRST, SECOND, World, attempt
from tests.waiting import PATIENCE

NAN = Reason("nonfinite", "tensor 'lm_head' holds NaN")


def row(text: str, name: str) -> str:
    """The value of a row of the status block, which follows the sentence."""
    lines = text.splitlines()[2:]
    return next(line for line in lines if line.startswith(name)).split(maxsplit=1)[1]


async def test_status_is_a_block_a_person_can_read(world: World, hotreload: Command) -> None:
    world.events.publish(RevisionWanted(Revision("cccc3333", "step-3")))
    world.events.publish(Wait("2 of 4 shards of step-3"))
    world.events.publish(AttemptFinished(attempt(), SECOND))
    world.view.ledger.refused["dddd"] = Refusal(
        Revision("dddd4444", "step-0"), NAN, time.time() - 7200
    )
    world.view.ledger.pinned = True
    said = await hotreload("status")
    assert (said.code, said.err) == (0, "")
    assert row(said.out, "state") == "serving"
    assert row(said.out, "generation") == "2"
    assert row(said.out, "revision") == "step-2 (bbbb2222)"
    assert row(said.out, "wanted") == "step-3 (cccc3333)"
    assert row(said.out, "waiting").startswith("for   2 of 4 shards of step-3 (")
    assert row(said.out, "gate") == "open, 0 inside, 0 held"
    assert row(said.out, "pinned").startswith("yes")
    assert "step-2 (bbbb2222): live as generation 2, " in row(said.out, "last attempt")
    assert "validating 200 ms, staging 1.0 s, swapping 4 ms" in said.out
    assert "requests held 5 ms" in said.out
    assert "step-0 (dddd4444): nonfinite: tensor 'lm_head' holds NaN" in said.out
    assert "2 h ago" in row(said.out, "refused")


async def test_status_shows_the_old_generation_fading_out_and_the_mode(
    world: World, hotreload: Command
) -> None:
    world.go_live(SECOND)
    said = (await hotreload("status")).out
    assert row(said, "answering") == "0 requests by generation 2"
    assert "mode" not in said
    world.view.older = [AnsweringGeneration(FIRST, 3)]
    world.events.publish(ModeChosen(Mode.OVERLAP))
    said = (await hotreload("status")).out
    assert row(said, "answering") == "0 requests by generation 2, 3 requests still by 1"
    assert row(said, "mode") == "overlap"
    world.events.publish(ModeChosen(Mode.DRAIN, "it decodes speculatively"))
    said = (await hotreload("status")).out
    assert row(said, "mode") == "drain: it decodes speculatively"


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
        ("stopping", 6, "nobody is answered: stopping: why\n"),
        ("engine_lost", 70, "nobody is answered: lost: why: hotreload explain EngineLost\n"),
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


async def test_history_is_a_table_newest_first(world: World, hotreload: Command) -> None:
    world.events.publish(AttemptFinished(attempt(), SECOND))
    world.events.publish(AttemptFinished(attempt(Outcome.REJECTED, NAN), SECOND))
    said = await hotreload("history")
    head, refused, live = said.out.splitlines()
    names = "WHEN REVISION OUTCOME GEN TOOK HELD LOADER BY REASON, CHANGE"
    assert head.split() == names.split()
    assert refused.endswith("nonfinite: tensor 'lm_head' holds NaN")
    assert {head.index("OUTCOME"), live.index("live")} == {refused.index("rejected")}
    assert "1.2 s" in live
    one = await hotreload("history", "-n", "1", "--json")
    assert [past["outcome"] for past in json.loads(one.out)["attempts"]] == ["rejected"]


async def test_the_history_tells_who_asked_for_what_and_when(
    world: World, hotreload: Command
) -> None:
    rollback, pin = (By(verb, 0, 77, 1.7e9, f"why {verb}") for verb in ("rollback", "pin"))
    world.events.publish(AttemptFinished(attempt(), SECOND))
    world.events.publish(AttemptFinished(replace(attempt(), by=rollback), SECOND))
    world.events.publish(OperatorAsked(replace(pin, at=1.7e9 + 200)))
    _, first, *attempts = (await hotreload("history")).out.splitlines()
    assert first.startswith(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1.7e9 + 200)))
    assert "  pinned  " in first
    assert first.split()[-4:] == ["(pid", "77)", "why", "pin"]
    back, wished = attempts
    left = "from step-2 (bbbb2222), generation 2"
    assert "  rolled back  " in back
    assert back.endswith(f"rollback, root (pid 77)  why rollback; {left}")
    assert wished.endswith("source                   -")
    said = json.loads((await hotreload("history", "--json")).out)
    assert [by["verb"] for by in said["pins"]] == ["pin"]
    assert [past["outcome"] for past in said["attempts"]] == ["live", "live"]
    assert [past["by"] and past["by"]["pid"] for past in said["attempts"]] == [77, None]


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


async def test_status_says_who_holds_or_overrules_the_source_since_when_and_why(
    world: World, hotreload: Command
) -> None:
    by = By("reload", 0, 77, 1.7e9, "the newest talks too much")
    live = Revision("aaaa1111", "step-1")
    world.events.publish(RevisionWanted(live))
    world.view.ledger.wish(Revision("cccc3333", "step-3"))
    world.view.ledger.overrule(live, by)
    world.view.ledger.set_pinned(True, replace(by, verb="pin"))
    said = (await hotreload("status")).out
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(1.7e9))
    wanted = row(said, "wanted")
    assert wanted.startswith(f"what is live, by hand: reload by root (pid 77), {since} (")
    assert wanted.endswith(" d ago): the newest talks too much")
    assert (
        "it overrules the source's step-3 (cccc3333) until the source wishes something new" in said
    )
    assert f"pin by root (pid 77), {since}" in said


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


async def test_status_says_that_noise_answers_and_that_a_restart_forgets(
    world: World, hotreload: Command
) -> None:
    usual = (await hotreload("status")).out
    assert "noise" not in usual
    assert "not saved" not in usual
    noisy = Generation(2, Revision(f"{NOISY}1-0.01-3-fp", "step-1 + noise"), "fp-2", 1.7e9)
    world.go_live(noisy)
    world.events.publish(StateSaved("state.json cannot be written: read-only"))
    said = (await hotreload("status")).out
    assert row(said, "noise").startswith("somebody put noise on")
    assert row(said, "not saved").startswith("saved    a restart forgets what")
    assert "state.json cannot be written: read-only" in said


async def test_settings_that_want_a_restart_or_are_wrong_are_told_until_they_are_read_again(
    world: World, hotreload: Command
) -> None:
    assert "settings" not in (await hotreload("status")).out
    world.events.publish(SettingsRead((), ("[server] tcp", "[engine] tp")))
    waits = row((await hotreload("status")).out, "settings")
    assert waits == "changed, and want a restart: [server] tcp, [engine] tp"
    world.events.publish(SettingsRead(error="hotreload.toml: is not TOML"))
    wrong = row((await hotreload("status")).out, "settings")
    assert wrong.endswith("but not applied: hotreload.toml: is not TOML")
    world.events.publish(SettingsRead())
    assert "settings" not in (await hotreload("status")).out


async def test_an_empty_history_says_so_beside_the_results(
    world: World, hotreload: Command
) -> None:
    said = await hotreload("history")
    assert (said.code, said.out, said.err) == (0, "", "no attempt yet\n")


async def test_checksums_lists_each_leaf_and_the_fingerprint(
    world: World, hotreload: Command
) -> None:
    said = await hotreload("checksums")
    assert said.code == 0
    assert [line.split() for line in said.out.splitlines()[:2]] == [
        ["11", "lm_head"],
        ["7", "model.embed"],
    ]
    assert "fingerprint fp-1 of generation 1" in said.out


async def test_checksums_fails_when_the_weights_changed_under_us(
    world: World, hotreload: Command
) -> None:
    world.engine.damage["lm_head"] = 12
    said = await hotreload("checksums", "--json")
    assert said.code == 1
    assert json.loads(said.out)["changed"] == ["lm_head"]
    assert "lm_head is no longer what went live" in said.err


async def test_checksums_of_changed_weights_come_without_a_fingerprint(
    world: World, hotreload: Command
) -> None:
    world.engine.damage["lm_head"] = 12
    last = (await hotreload("checksums")).out.splitlines()[-1]
    assert last == "no fingerprint of generation 1: its weights are no longer what went live"


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
