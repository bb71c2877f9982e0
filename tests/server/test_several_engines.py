"""A request whose engine dies is answered by another, as long as its client saw none of it."""

from typing import Any, NoReturn

import pytest

from hotreload.errors import EngineLost
from hotreload.types import Lease
from tests.fakes import FakeEngine
from tests.server.test_generate import ASK, STREAM, chunks
from tests.server.world import FIRST, World

DEATH = EngineLost("the scheduler thread died")


@pytest.fixture
def second(world: World) -> FakeEngine:
    """A second engine answers too, and says something else."""
    engine = world.another_engine("another engine answers")
    world.entrance.gates[1].open(Lease(FIRST, engine))
    return engine


async def dies(request: object) -> NoReturn:
    raise DEATH


@pytest.mark.parametrize("step", ["generate", "prepare"])
@pytest.mark.parametrize("ask", [ASK, STREAM], ids=["whole", "streamed"])
async def test_another_engine_answers_what_was_not_begun(
    world: World,
    second: FakeEngine,
    step: str,
    ask: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world.engine.steps.faults["generate"] = DEATH
    if step == "prepare":
        monkeypatch.setattr(world.engine, "prepare", dies)
    async with world.client() as client:
        for _ in range(3):
            answer = await client.post("/generate", json=ask)
            assert answer.status_code == 200
            assert "another engine answers" in answer.text
    assert world.gate.is_lost


async def test_a_stream_that_was_begun_is_told_the_truth(world: World) -> None:
    world.engine.breaks_after = (2, DEATH)
    async with world.client() as client:
        answer = await client.post("/generate", json=STREAM)
    assert chunks(answer.text)[-1]["error"]["code"] == "engine_lost"


async def test_when_all_are_lost_the_client_is_told(world: World, second: FakeEngine) -> None:
    world.engine.steps.faults["generate"] = DEATH
    second.steps.faults["generate"] = DEATH
    async with world.client() as client:
        answer = await client.post("/generate", json=ASK)
    assert (answer.status_code, answer.json()["code"]) == (503, "engine_lost")
