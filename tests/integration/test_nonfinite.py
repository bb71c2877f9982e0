"""Finite weights that pass the probe and overflow on one client's prompt, under load."""

from collections import Counter
from pathlib import Path

import httpx
import pytest

from hotreload.events import AnswersWithheld
from hotreload.types import Outcome
from tests.engine.real import OVERFLOWS_ON, overflowing
from tests.integration.running import Load, Running, mixed, request_for, words

pytestmark = pytest.mark.real_engine

POISON = f"Who{OVERFLOWS_ON}serves?"


async def test_nobody_is_handed_nan_and_the_way_back_is_taken_by_itself(tmp_path: Path) -> None:
    running = Running(tmp_path, "checks.on_nonfinite_answers=rollback")
    running.drop(1)
    async with running.serving(), running.client() as client:
        bad = overflowing(running.checkpoints / "step_2", words(2))
        assert (await running.attempted(bad)).outcome is Outcome.LIVE
        async with Load(running, 8).on() as load:
            await running.until(lambda: running.daemon.entrance.inside > 4)
            refused = await client.post("/generate", json=request_for(POISON))
            await running.until(lambda: len(running.generations) == 3)
            await running.until(lambda: running.is_open)
            before = len(load.answers)
            while len(load.answers) < before + 20:
                await running.ask()
        assert (refused.status_code, refused.json()["code"]) == (500, "nonfinite_answer")
        assert mixed(load.answers, running.generations) == []
        assert Counter(number for number, _ in load.answers).keys() == {2, 3}
        # A stream's last event is the error, which has no meta_info.
        assert all("500" in each or each == "KeyError: 'meta_info'" for each in load.failures)
        status = running.daemon.status.snapshot()
        page = (await client.get("/metrics")).text
    assert (status["label"], status["generation"]) == ("step_1", 3)
    assert [each["code"] for each in status["refused"]] == ["nonfinite_answers"]
    told = [each for each in running.happened if isinstance(each, AnswersWithheld)]
    assert {each.generation.number for each in told} == {2}
    assert f"hotreload_answers_withheld_total {sum(e.answers for e in told):.1f}" in page
    assert sum(each.answers for each in told) == len(load.failures) + 1


async def test_by_default_the_weights_stay_and_other_prompts_are_answered_well(
    tmp_path: Path,
) -> None:
    running = Running(tmp_path)
    overflowing(running.checkpoints / "step_1", words(1))
    async with running.serving(), running.client() as client:
        for times in (1, 2):
            refused = await client.post("/v1/completions", json=completion(POISON))
            assert refused.json()["error"]["code"] == "nonfinite_answer"
            await running.until(lambda times=times: withheld(running) == times)  # type: ignore[misc]
            assert (await running.ask())["text"] == words(1)
        streamed = await stream(client, POISON)
        assert "nonfinite_answer" in streamed
        assert running.live.number == 1
        assert running.daemon.status.snapshot()["state"] == "serving"


def completion(prompt: str) -> dict[str, object]:
    return {"model": "step_1", "prompt": prompt, "max_tokens": 12, "temperature": 0}


def withheld(running: Running) -> int:
    return sum(e.answers for e in running.happened if isinstance(e, AnswersWithheld))


async def stream(client: httpx.AsyncClient, prompt: str) -> str:
    return (await client.post("/generate", json=request_for(prompt, stream=True))).text
