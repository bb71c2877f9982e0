"""What an operator does through the admin routes, on the real engine."""

import asyncio
import json
import logging
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from hotreload.cli.client.texts import history_text, status_text
from hotreload.events import PhaseEntered, SettingsRead, Warmup
from hotreload.features.bake.rule import BakeSettings
from hotreload.features.command.command import CommandSettings
from hotreload.features.compare.evidence import LiveCompared
from hotreload.features.compare.settings import CompareLimits, CompareSettings
from hotreload.life.acceptance import with_files
from hotreload.setting import NamedFile
from hotreload.settings.tables import with_values
from hotreload.tiny import write_tiny
from hotreload.types import Generation, Phase
from tests.features.bake.found import baking_of
from tests.features.compare.found import hearing_of
from tests.integration.running import (
    Load,
    Running,
    mixed,
    one_daemon,
    one_daemon_marks,
    post,
    words,
)
from tests.waiting import turn_until

pytestmark = one_daemon_marks()


ASKS_BOTH = Path(__file__).with_name("asks_both.py")
DECIDES = f"case $HOTRELOAD_LABEL in step_4*) exec {sys.executable} -I {ASKS_BOTH}; esac"
"""Decides about the checkpoints of one test."""

running = one_daemon(
    "reload.keep_previous=device",
    "engine.warm_batches=2",
    "compare.report=true",
    "compare.limits.min_agreement=0.05",
    "compare.mirror=0.1",
    "compare.replay=8",
    f"command.run={['sh', '-c', DECIDES]}",
)


async def test_the_steps_of_the_start_are_in_the_history_with_their_times(
    running: Running,
) -> None:
    start = (await get(running, "/history"))["attempts"][-1]
    steps = ["fetching", "validating", "staging", "building", "probing"]
    assert (list(start["phases"]), start["by"]["verb"]) == (steps, "start")
    assert (await get(running, "/status"))["boot"] is None


async def test_it_answers_while_it_compiles_for_larger_batches_and_says_how_far_it_is(
    running: Running,
) -> None:
    """The first answers are proven ones, as any: the probes were asked before anybody was let in.

    A first batch of a size that was compiled for compiles nothing.
    """
    await running.until(lambda: any(isinstance(event, Warmup) for event in running.happened))
    happened = [type(event).__name__ for event in running.happened]
    probing = PhaseEntered(running.live.revision, Phase.PROBING)
    warming = [event for event in running.happened if isinstance(event, Warmup)]
    assert running.happened.index(probing) < happened.index("GateChanged")
    assert happened.index("GateChanged") < happened.index("Warmup")
    total = warming[0].total
    assert total > 2
    assert warming[0] == Warmup(0, 0, total)
    assert (await running.ask())["text"] == words(1)
    await running.until(lambda: Warmup(0, total, total, is_over=True) in running.happened)
    assert (await get(running, "/status"))["replicas"][0]["warming"] is None
    before = running.engine.recompiles
    request = {"text": ["x" * 70, "y" * 70], "sampling_params": {"max_new_tokens": 4}}
    async with running.client() as client:
        answer = await client.post("/generate", json=request)
    assert answer.status_code == 200, answer.text
    assert (before, running.engine.recompiles) == (0, 0)


async def test_a_rollback_under_load_gives_the_answers_from_before(running: Running) -> None:
    before = await running.ask()
    await running.attempted(running.drop(2))
    assert (await running.ask())["text"] == words(2)
    async with Load(running, 8).on() as load:
        answer = await post(running, "rollback")
    after = await running.ask()
    assert answer.status_code == 200, answer.text
    assert answer.json()["generation"] == running.live.number == 3
    assert (after["text"], after["output_ids"]) == (before["text"], before["output_ids"])
    assert after["meta_info"]["fingerprint"] == before["meta_info"]["fingerprint"]
    assert load.failures == []
    assert mixed(load.answers, running.generations) == []


async def test_what_was_rolled_back_from_does_not_come_back_by_itself(running: Running) -> None:
    refused = (await get(running, "/status"))["refused"]
    assert [(r["label"], r["code"]) for r in refused] == [("step_2", "rolled_back")]
    again = await post(running, "reload_weights", model_path="step_2")
    assert again.status_code == 422
    forced = await post(running, "reload_weights", model_path="step_2", force=True)
    assert forced.status_code == 200
    assert (await running.ask())["text"] == words(2)


async def test_a_dry_run_says_what_would_come_of_it_and_changes_nothing(
    running: Running,
) -> None:
    live, before = running.live, await running.ask()
    good, bad = running.drop(0), running.drop(0, "gibberish")  # older: the source wants neither
    passed = await post(running, "reload_weights", model_path=str(good), dry_run=True)
    said = passed.json()
    assert (passed.status_code, said["outcome"], said["unproven"]) == (200, "passed", None)
    assert said["loader"] == "own"
    assert said["leaves_changed"] >= 1
    refused = await post(running, "reload_weights", model_path=str(bad), dry_run=True)
    assert (refused.status_code, refused.json()["code"]) == (422, "probe")
    history = (await get(running, "/history"))["attempts"][:2]
    assert [(each["outcome"], each["dry_run"]) for each in history] == [
        ("rejected", True),
        ("passed", True),
    ]
    status = await get(running, "/status")
    assert bad.name not in {each["label"] for each in status["refused"]}
    assert status["last_attempt"]["dry_run"] is False
    assert (running.live, await running.ask()) == (live, before | {"meta_info": ANY})


async def test_the_checksum_of_what_is_live_is_that_of_its_generation(running: Running) -> None:
    checksum = await get(running, "/admin/weights_checksum?leaves=1")
    assert checksum["fingerprint"] == running.live.fingerprint
    assert checksum["leaves"] == dict(running.live.leaves)
    assert len(checksum["leaves"]) > 20


async def test_a_pin_holds_until_it_is_taken_off(running: Running) -> None:
    await post(running, "pin")
    live = running.live
    running.drop(5)
    await running.until(lambda: "pin" in str(running.daemon.status.snapshot()["waiting_for"]))
    assert running.live == live
    assert (await post(running, "reload_weights")).status_code == 409
    await post(running, "unpin")
    await running.until(lambda: running.live.revision.label == "step_5")


async def test_a_reload_of_a_folder_outside_is_refused_by_name(running: Running) -> None:
    outside = running.folder / "elsewhere"
    outside.mkdir()
    answer = await post(running, "reload_weights", model_path=str(outside))
    assert answer.status_code == 400
    assert str(running.checkpoints) in answer.json()["detail"]


async def test_the_metrics_tell_what_happened(running: Running) -> None:
    async with running.client() as client:
        page = (await client.get("/metrics")).text
    live = running.live
    assert f"hotreload_generation {float(live.number)}" in page
    assert f'fingerprint="{live.fingerprint}"' in page
    assert page.count("hotreload_leaf_checksum{") == len(live.leaves)
    assert 'hotreload_reloads_total{outcome="live"} 5.0' in page
    assert 'hotreload_weights_bytes{place="live",replica="0"} 0.0' not in page


TALKS = "served by the new daemon with many more words than any good answer would ever have 8"
"""Longer than clients let answers be here; the probe does."""


async def test_weights_whose_answers_are_worse_are_left_by_themselves(running: Running) -> None:
    live, baking = running.live, baking_of(running.daemon)
    baking.go_by(BakeSettings(time=300.0))
    async with Load(running, 8).on() as load:
        await turn_until(lambda: len(load.answers) >= 100, pause=0.01)
        folder = write_tiny(running.checkpoints / "step_8", TALKS)
        worse = (await running.attempted(folder)).generation
        await running.until(lambda: running.live.number not in (live.number, worse))
    baking.go_by(BakeSettings())
    assert load.failures == []
    assert running.live.fingerprint == live.fingerprint
    back, there = (await get(running, "/history"))["attempts"][:2]
    assert (there["generation"], there["bake"]["outcome"]) == (worse, "convicted")
    told = {each["signal"]: each for each in there["bake"]["signals"]}
    assert told["length"]["low"] > told["length"]["old_high"] + 0.02
    assert (back["told"]["outcome"], back["by"]["verb"]) == ("rolled back", "bake")
    refused = (await get(running, "/status"))["refused"]
    assert ("step_8", "bake") in [(each["label"], each["code"]) for each in refused]


async def get(running: Running, route: str) -> Any:
    async with running.client() as client:
        return (await client.get(route)).json()


def nothing_is_left_to_do(running: Running) -> bool:
    """Whether the newest wish is live, or was left by a rollback, whichever came last."""
    ledger, is_at_rest = running.daemon.ledger, running.daemon.status.snapshot()["phase"] is None
    wanted = ledger.wanted
    is_done = wanted == running.live.revision or (wanted and wanted.id in ledger.refused)
    return is_at_rest and bool(is_done)


async def test_signals_wishes_and_asks_all_at_once_end_with_one_thing_live(
    running: Running,
) -> None:
    """Of what is asked at once one is done, the rest is told to ask again (faults 28)."""
    running.drop(20)
    running.drop(21)
    for _ in range(200):
        os.kill(os.getpid(), signal.SIGHUP)
    answers = await asyncio.gather(
        post(running, "reload_weights", model_path="step_20"),
        post(running, "rollback", hold=False),
        post(running, "reload_weights", model_path="step_21"),
        post(running, "rollback", hold=False),
    )
    assert {answer.status_code for answer in answers} <= {200, 409}, [a.text for a in answers]
    assert 200 in {answer.status_code for answer in answers}
    await running.until(lambda: running.is_open and nothing_is_left_to_do(running))
    told = await get(running, "/status")
    answer = await running.ask()
    assert answer["text"] == words(int(told["label"].rpartition("_")[2]))
    assert answer["meta_info"]["generation"] == told["generation"] == running.live.number
    numbers = [generation.number for generation in running.generations]
    assert numbers == sorted(set(numbers))


async def test_how_new_weights_differ_is_told_and_limits_refuse_them_before_anybody_hears_them(
    running: Running,
) -> None:
    """Under load: what is compared is compiled ahead, so nobody waits for that.

    There are as many clients as batches were compiled for: a larger one would compile itself.
    """
    await running.until(
        lambda: any(isinstance(event, Warmup) and event.is_over for event in running.happened)
    )
    live, before = running.live, running.engine.recompiles
    async with Load(running, 2).on() as load:
        await running.attempted(running.drop(30))
        early = (await get(running, "/history"))["attempts"][0]
        assert (early["outcome"], early["label"]) == ("live", "step_30")
        good = await compared(running, 30)
        found = good["behaviour"]
        assert (found["agreement"], found["noise_kl"]) == (pytest.approx(0.75, abs=0.05), 0)
        assert found["mean_kl"] == early["behaviour"]["mean_kl"] > 1
        await running.attempted(write_tiny(running.checkpoints / "step_31", "goodbye from step 31"))
        bad = (await get(running, "/history"))["attempts"][0]
    assert (bad["outcome"], bad["code"], bad["generation"]) == ("rejected", "behaviour", None)
    assert bad["findings"][0] == "min_agreement: 0 is under 0.05"
    answers = "live 'served by step 30', new 'goodbye from step 31'"
    assert answers in bad["findings"][1]
    assert (len(bad["behaviour"]["worst"]), await shown(running, answers)) == (3, [3, 3])
    assert bad["behaviour"]["worst"][0]["why"].startswith("agreement: 0 of ")
    assert load.failures == []
    said = {text for _, text in load.answers}
    assert said <= {words(live_number(live)), words(30)}
    assert running.engine.recompiles == before


async def shown(running: Running, said: str) -> list[int]:
    """How often `hotreload status` says it, and `hotreload history` of the last attempt."""
    status, past = await get(running, "/status"), await get(running, "/history")
    return [status_text(status).count(said), history_text(past["attempts"][:1]).count(said)]


MARK = "what a client said in confidence"
STEP = 0.05
"""Seconds by which each step of a slow model is longer."""


async def test_new_weights_are_compared_by_what_clients_were_answered_and_nothing_of_it_is_told(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever sampling they used, and for how long it was: they are led along its beginning."""
    caplog.set_level(logging.DEBUG)
    before = running.engine.recompiles
    sampled = {"temperature": 1.0, "max_new_tokens": 6}
    prompts = [f"{MARK} {number}" for number in range(8)]
    async with running.client() as client:
        for number, text in enumerate(prompts):
            body = {"text": text, "sampling_params": sampled, "stream": number > 3}
            assert (await client.post("/generate", json=body)).status_code == 200
    kept = hearing_of(running.daemon).take_recorded()
    ids = await running.engine.answers.tokenize({"text": prompts})
    assert [list(each.prompt) for each in kept] == ids[::-1]
    heard = {"mirror": 0.1, "replay": 8, "kept": 8, "mirrored": 0}
    assert (await get(running, "/status"))["heard"] == heard
    await running.attempted(running.drop(39))
    found = await compared(running, 39)
    assert (found["outcome"], found["behaviour"]["heard"]) == ("live", 8)
    assert found["behaviour"]["heard_tokens"] > 8
    assert found["behaviour"]["heard_noise_kl"] == 0
    assert 0 < found["behaviour"]["heard_same_top"] < 1
    assert running.engine.recompiles == before
    told = [str(event) for event in running.happened]
    files = [each.read_bytes() for each in (running.folder / "state").rglob("*") if each.is_file()]
    for place in ("/status", "/history", "/metrics"):
        async with running.client() as client:
            told.append((await client.get(place)).text)
    told += [str(vars(record)) for record in caplog.records]
    assert not [each for each in told if MARK in each]
    assert not [each for each in files if MARK.encode() in each]


async def test_a_command_asks_new_and_live_weights_side_by_side_and_refuses_what_it_does_not_want(
    running: Running,
) -> None:
    """Under load: it asks more at once than are answered at a time, and nobody waits for it."""
    live = running.live
    async with Load(running, 2).on() as load:
        await running.attempted(running.drop(40))
        bad = (await get(running, "/history"))["attempts"][0]
    assert (bad["outcome"], bad["code"], bad["generation"]) == ("rejected", "command", None)
    assert bad["findings"] == [f"candidate: {words(40)}", f"live: {words(live_number(live))}"]
    assert await shown(running, f"the command said: {' / '.join(bad['findings'])}") == [1, 1]
    assert load.failures == []
    assert {text for _, text in load.answers} == {words(live_number(live))}
    answer = await running.ask()
    assert answer["meta_info"]["generation"] == live.number


async def test_too_few_right_answers_to_the_operators_own_questions_refuse_a_checkpoint(
    running: Running,
) -> None:
    """Questions that it was told of while it serves; some are a chat."""
    number = live_number(running.live)
    file = running.folder / "prompts.jsonl"
    chat = [{"role": "user", "content": "Who serves?"}]
    lines: list[dict[str, Any]] = [
        {"prompt": f"Who is {at}?", "contains": f"step {number}"} for at in range(5)
    ]
    lines += [{"messages": chat, "answer": words(number)}, {"prompt": "Who?", "matches": "step"}]
    file.write_text("\n".join(map(json.dumps, lines)))
    limits = CompareLimits(min_accuracy=0.5)
    await reread(running, corpus=NamedFile(file), limits=limits)
    await running.attempted(running.drop(51))
    bad = (await get(running, "/history"))["attempts"][0]
    assert (bad["outcome"], bad["code"]) == ("rejected", "behaviour"), bad
    found = bad["behaviour"]["right_answers"]
    assert (found["expected"], found["right"], found["live_right"]) == (7, 1, 7)
    assert (found["worse"], found["p_worse"]) == (6, 1 / 64)
    assert found["smallest_drop"] == pytest.approx(5 / 7)
    assert bad["findings"][0].startswith("min_accuracy: 0.143 (the live weights' 1; 6 worse")
    assert (await running.ask())["text"] == words(number)


def live_number(live: Generation) -> int:
    return int(live.revision.label.rpartition("_")[2])


async def reread(running: Running, **compare: Any) -> None:
    """Have the daemon read other settings of [compare]."""
    wished = replace(running.settings.of(CompareSettings), **compare)
    settings = with_values(running.settings, {"compare": wished})
    running.daemon.live_settings.read = lambda: with_files(settings)
    before = len(running.happened)
    os.kill(os.getpid(), signal.SIGHUP)
    await running.until(
        lambda: any(isinstance(e, SettingsRead) and e.changed for e in running.happened[before:])
    )


async def test_a_comparison_by_which_nothing_decides_keeps_nothing_back_and_comes_later(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client is answered all along by the old weights, which are asked beside the new ones."""
    await running.until(lambda: any(isinstance(e, Warmup) and e.is_over for e in running.happened))
    await reread(running, limits=CompareLimits())
    live_settings = running.daemon.live_settings
    settings = with_values(live_settings.settings, {"command": CommandSettings()})
    monkeypatch.setattr(live_settings, "settings", settings)
    worker, before = running.engine._scheduler.scheduler.tp_worker, running.live
    recompiles, launch = running.engine.recompiles, worker.forward_batch_generation

    def launch_slowly(*args: Any, **more: Any) -> Any:
        time.sleep(STEP)
        return launch(*args, **more)

    sampling = {"max_new_tokens": 200, "ignore_eos": True, "temperature": 0}
    async with running.client() as client:
        with monkeypatch.context() as slowly:
            slowly.setattr(worker, "forward_batch_generation", launch_slowly)
            asked = client.post("/generate", json={"text": "x", "sampling_params": sampling})
            answering = asyncio.create_task(asked)
            await running.until(lambda: running.engine.answers.under_way == 1)
            await running.attempted(running.drop(52))
            assert not answering.done()
            first = await compared(running, 52)
        answer = (await answering).json()
    made = answer["meta_info"]["completion_tokens"], answer["meta_info"]["generation"]
    assert made == (200, before.number)
    assert answer["text"].startswith(words(live_number(before)))
    assert (first["outcome"], first["behaviour"]["noise_kl"]) == ("live", 0)
    assert (first["behaviour"]["agreement"], first["not_compared"]) == (ANY, None)
    assert "comparing" not in first["phases"]
    await running.attempted(running.drop(53))
    await running.attempted(running.drop(54))
    found = await compared(running, 54)
    assert found["behaviour"] or found["not_compared"].startswith("cut short by the next change")
    assert (await running.ask())["text"] == words(54)
    assert running.engine.recompiles == recompiles


async def compared(running: Running, step: int) -> dict[str, Any]:
    """The attempt at this checkpoint, once it was compared with what was live before."""

    def told() -> list[LiveCompared]:
        found = (each for each in running.happened if isinstance(each, LiveCompared))
        return [each for each in found if each.revision.label == f"step_{step}"]

    await running.until(lambda: bool(told()))
    attempts: list[dict[str, Any]] = (await get(running, "/history"))["attempts"]
    return next(each for each in attempts if each["label"] == f"step_{step}")
