"""Conversations on the real engine, while checkpoints go live under load."""

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest

from hotreload.core.way_in.admission import Conditions
from hotreload.features.pause.pause import Pause
from hotreload.features.sessions import sessions
from hotreload.features.sessions.sessions import Sessions
from tests.features.admissions import admission_of
from tests.integration.running import (
    Load,
    Running,
    mixed,
    one_daemon,
    one_daemon_marks,
    request_for,
)
from tests.waiting import turn_until

pytestmark = one_daemon_marks()

running = one_daemon("sessions.keep=1", "reload.sets=3")
FLIPS = 6
TURNS = 3
GONE = (409, "generation_gone")


@dataclass
class Talk:
    """What came of each turn: the fingerprint that answered, or the refusal."""

    prints: list[str] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)
    refusals: list[tuple[int, str]] = field(default_factory=list)


async def turn(running: Running, talk: Talk, session: str, **headers: str) -> Any:
    async with running.client() as client:
        named = {"x-multi-turn-session-id": session, **headers}
        answer = await client.post("/generate", json=request_for("Who serves?"), headers=named)
    told = answer.json()
    if answer.status_code != 200:
        talk.refusals.append((answer.status_code, told["code"]))
        assert answer.headers["x-should-retry"] == "false"
        return None
    meta = told["meta_info"]
    assert answer.headers["X-Hotreload-Fingerprint"] == meta["fingerprint"]
    talk.prints.append(meta["fingerprint"])
    talk.generations.append(meta["generation"])
    return meta["generation"], told["text"]


async def no_old_lane(running: Running) -> None:
    """Until the last one has ended."""
    await turn_until(lambda: not running.daemon.slot.replicas().first.fading)


class Talks:
    """Clients that hold one conversation of three turns after the other."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.talks: list[Talk] = []
        self.answers: list[tuple[int, str]] = []
        self.enough = asyncio.Event()

    async def client(self, number: int) -> None:
        """Some let no time pass between two turns, some so much that their weights may be gone."""
        pauses = itertools.cycle((0.01, 0.3, 0.15, 1.2) if number % 2 else (0.01,))
        for talk_number in itertools.count():
            if self.enough.is_set():
                return
            talk = Talk()
            self.talks.append(talk)
            for _ in range(TURNS):
                told = await turn(self.running, talk, f"{number}-{talk_number}")
                if told is None:
                    break
                self.answers.append(told)
                await asyncio.sleep(next(pauses))


async def test_every_turn_of_a_conversation_is_answered_by_one_fingerprint_or_refused(
    running: Running,
) -> None:
    talks = Talks(running)
    async with asyncio.TaskGroup() as tasks, Load(running, clients=4).on() as load:
        for number in range(6):
            tasks.create_task(talks.client(number))
        for number in range(2, 2 + FLIPS):
            await running.attempted(running.drop(number))
            await asyncio.sleep(0.8)
        talks.enough.set()
    assert load.failures == []
    assert mixed(load.answers + talks.answers, running.generations) == []
    assert [talk for talk in talks.talks if len(set(talk.prints)) > 1] == []
    assert {refusal for talk in talks.talks for refusal in talk.refusals} <= {GONE}
    whole = [talk for talk in talks.talks if len(talk.prints) == TURNS]
    across = [talk for talk in talks.talks if len(talk.prints) > 1]
    assert len(whole) >= FLIPS
    assert any(went_on_after_a_flip(running, talk) for talk in across)
    # When nobody speaks any more the last old lane ends.
    await no_old_lane(running)


def went_on_after_a_flip(running: Running, talk: Talk) -> bool:
    return talk.generations[-1] < running.live.number


async def test_who_names_weights_is_answered_by_them_while_their_lane_is_open(
    running: Running,
) -> None:
    talk, before = Talk(), running.live
    assert await turn(running, talk, "begins")
    flipping = asyncio.create_task(running.attempted(running.drop(20)))
    while not flipping.done():  # else its lane ends where the attempt takes longer than a second
        assert await turn(running, talk, "begins")
    exact = {"X-Hotreload-Fingerprint": before.fingerprint}
    assert await turn(running, talk, "", **exact)
    assert set(talk.prints) == {before.fingerprint}
    await no_old_lane(running)
    assert await turn(running, talk, "begins") is None
    assert await turn(running, talk, "", **exact) is None
    assert talk.refusals == [GONE, GONE]


async def test_a_lane_goes_by_the_name_that_its_weights_were_given_while_they_were_live(
    running: Running,
) -> None:
    talk = Talk()
    assert await turn(running, talk, "named")
    former = running.live.weight_version
    async with running.client() as client:
        named = await client.post("/update_weight_version", json={"new_version": "named"})
        assert named.status_code == 200
        flipping = asyncio.create_task(running.attempted(running.drop(21)))
        while not flipping.done():
            assert await turn(running, talk, "named")
        body = request_for("Who serves?")
        told = {}
        for header in ({}, *({"X-Hotreload-Weight-Version": each} for each in ("named", former))):
            headers = {"x-multi-turn-session-id": "named", **header}
            answer = await client.post("/generate", json=body, headers=headers)
            told[header.get("X-Hotreload-Weight-Version")] = (
                answer.status_code,
                answer.json().get("meta_info", {}).get("weight_version"),
            )
    assert told == {None: (200, "named"), "named": (200, "named"), former: (409, None)}
    await no_old_lane(running)


@pytest.mark.parametrize("name", ["über", "v\u20117", "v1\n", " v1", "v1 ", "\x7f"])
async def test_weights_get_no_name_that_no_header_can_ask_for(running: Running, name: str) -> None:
    before = running.live.weight_version
    path = str(running.checkpoints / "step_1")
    orders = {
        "/update_weight_version": {"new_version": name},
        "/update_weights_from_disk": {"model_path": path, "weight_version": name},
        "/admin/reload_weights": {"model_path": path, "weight_version": name},
    }
    async with running.client() as client:
        for route, body in orders.items():
            answer = await client.post(route, json=body)
            assert answer.status_code == 400, route
            assert "version must be printable ASCII" in answer.text
    assert running.live.weight_version == before


async def test_weights_are_asked_for_by_the_name_they_were_given(running: Running) -> None:
    name = "run 3/step=7, ~rev {a}"
    async with running.client() as client:
        assert (await client.post("/update_weight_version", json={"new_version": name})).is_success
    told = await turn(running, Talk(), "", **{"X-Hotreload-Weight-Version": name})
    assert told is not None


async def test_a_rollback_is_followed_by_nobody_who_began_with_what_it_left(
    running: Running,
) -> None:
    talk, left = Talk(), running.live.fingerprint
    assert await turn(running, talk, "bad")
    async with running.client() as client:
        assert (await client.post("/admin/rollback", json={})).status_code == 200
    assert await turn(running, talk, "bad") is None
    assert await turn(running, talk, "good")
    assert (talk.prints[0], talk.refusals) == (left, [GONE])
    assert talk.prints[1] != left


async def test_one_that_runs_for_long_keeps_no_others_from_being_forgotten(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MOST_SESSIONS", 3)
    talk, entrance = Talk(), running.daemon.entrance
    async with entrance.admit(Conditions(session="runs")):
        for number in range(8):  # more than there may be, whoever came before
            assert await turn(running, talk, f"short {number}")
    assert len(admission_of(entrance, Sessions)) <= 3


@pytest.mark.parametrize("pause", ["/pause_generation", "/pause?mode=keep"])
async def test_a_conversation_goes_on_after_a_trainers_pause(running: Running, pause: str) -> None:
    talk, held_by = Talk(), admission_of(running.daemon.entrance, Pause)
    assert await turn(running, talk, pause)
    async with running.client() as client:
        await client.post(pause, json={"mode": "in_place"})
        held = asyncio.create_task(turn(running, talk, pause))
        await running.until(lambda: held_by.held == 1)
        await client.post("/continue_generation", json={})
    assert await held
    assert len(set(talk.prints)) == 1
