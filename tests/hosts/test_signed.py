"""What is not said by a rank of this life, or not as a rank says it, is not there."""

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hotreload.errors import DeviceUnavailable
from hotreload.hosts import messages
from hotreload.hosts.engine.joined_ranks import SignedStore, sign_for_this_life
from hotreload.hosts.life.rank_group import Beats
from hotreload.hosts.messages import (
    MOST_DOUBTS,
    MOST_NUMBER,
    MOST_TEXT,
    Doubts,
    InvalidMessage,
    live_fields,
    parse_live,
    parse_number,
    parse_revision,
    parse_text,
)
from hotreload.hosts.upstream.ranks import Store
from hotreload.hosts.vote import Ballot, Chair, Follower, Step
from hotreload.types import Generation, Revision, Staged
from tests.hosts.memory import MemoryStore
from tests.hosts.test_store import KINDS
from tests.waiting import TICK, turn_until

SECRET, OTHER = "s" * 32, "o" * 32
LIFE = "this life"


@pytest.fixture(scope="module", params=["in memory", "in two processes"])
def shared(request: pytest.FixtureRequest) -> Iterator[list[Store]]:
    """What everybody can write to, as two processes see it."""
    with KINDS[request.param]() as made:
        yield list(made)


def signed(store: Store, secret: str = SECRET, life: str = LIFE) -> SignedStore:
    return SignedStore(store, secret, life)


FORGED: dict[str, Callable[[Store], None]] = {
    "not signed": lambda store: store.put("key", "flip"),
    "nothing": lambda store: store.put("key", ""),
    "by another secret": lambda store: signed(store, OTHER).put("key", "flip"),
    "in another life": lambda store: signed(store, life="the last life").put("key", "flip"),
    "under another key": lambda store: replayed(store, "key 2", "key"),
    "10 MB of it": lambda store: store.put("key", "x" * 10_000_000),
}


def replayed(store: Store, one: str, other: str) -> None:
    signed(store).put(one, "flip")
    store.put(other, store.get(one, 5) or "")


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_what_a_stranger_says_is_not_there_and_what_a_rank_says_is(
    shared: list[Store], forge: Callable[[Store], None], caplog: pytest.LogCaptureFixture
) -> None:
    stranger, store = shared
    store.forget("key")
    rank = signed(store)
    forge(stranger)
    with caplog.at_level(logging.ERROR):
        assert [rank.get("key", within) for within in (2, 0.01, 0.01)] == [None] * 3
    assert [line.message for line in caplog.records] == ["ranks.not_believed"]
    signed(stranger).put("key", "stage")
    assert rank.get("key", 5) == "stage"


async def test_a_forged_step_is_waited_out_and_the_real_one_done(
    shared: list[Store], caplog: pytest.LogCaptureFixture
) -> None:
    stranger, store = shared
    chair, done = Chair(signed(stranger), [1]), list[str]()

    async def do(step: Step) -> dict[str, str]:
        done.append(step.name)
        return {}

    forging = signed(stranger, OTHER)
    forging.put("hotreload/step/1", Step(1, "flip", {"set": "first"}).to_text())
    forging.put("hotreload/step/1/1", Ballot(1).to_text())
    following = asyncio.create_task(Follower(signed(store), 1).follow(do))
    await turn_until(lambda: bool(caplog.records or done), pause=TICK)
    step = await chair.call("release", {})
    await chair.collect_votes(step, 30)
    assert done == ["release"]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_ranks_that_know_the_secret_agree_on_a_life_that_none_had_before() -> None:
    async def life() -> list[SignedStore]:
        store = MemoryStore()
        joining = (sign_for_this_life(store, SECRET, own, [1 - own], 30) for own in (0, 1))
        return await asyncio.gather(*joining)

    (one, other), (again, _) = await life(), await life()
    one.put("key", "said")
    assert other.get("key", 5) == "said"
    assert one._life != again._life


async def test_a_rank_with_another_secret_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    joining = (
        sign_for_this_life(store, secret, own, [1 - own], 0.3)
        for own, secret in enumerate((SECRET, OTHER))
    )
    for fault in await asyncio.gather(*joining, return_exceptions=True):
        assert isinstance(fault, DeviceUnavailable)
        assert "knows the secret: compare [engine] join_secret_file" in str(fault)


async def test_a_beat_that_is_said_again_is_no_sign_of_life() -> None:
    store = MemoryStore()
    beats = Beats(store, 0, [1])
    for said in ("7", "8", "7", "8", "x", "1" * 30):
        store.put("hotreload/beat/1", said)
        beats._read_others()
    assert beats._silent == {1: 4}


def test_who_writes_under_many_keys_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    doubts = Doubts()
    with caplog.at_level(logging.ERROR):
        for key in range(3 * MOST_DOUBTS):
            doubts.log_once(str(key), "it is no step")
    assert len(caplog.records) == MOST_DOUBTS


# --- their form, whoever signed them ---------------------------------------------------------

STEP = {"number": 1, "name": "flip", "about": {}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "flip",
        "[]",
        "[" * 100_000,
        json.dumps({**STEP, "more": 1}),
        json.dumps({**STEP, "number": "one"}),
        json.dumps({**STEP, "number": True}),
        json.dumps({**STEP, "number": MOST_NUMBER + 1}),
        json.dumps({**STEP, "name": 7}),
        json.dumps({**STEP, "about": {"set": 7}}),
        json.dumps({**STEP, "about": ["set"]}),
        json.dumps({**STEP, "name": "x" * MOST_TEXT}),
    ],
)
def test_what_is_no_step_is_not_believed(text: str) -> None:
    with pytest.raises(InvalidMessage):
        Step.from_text(text)


@pytest.mark.parametrize(
    "text",
    [
        "7",
        "[]",
        '[1, "maybe", null, {}]',
        '["1", "done", null, {}]',
        '[1, "lost", ["code"], {}]',
        '[1, "lost", [1, 2], {}]',
        '[1, "done", null, []]',
        '[1, "done", null, {"a": 1}]',
    ],
)
def test_what_is_no_ballot_is_not_believed(text: str) -> None:
    with pytest.raises(InvalidMessage):
        Ballot.from_text(text)


async def test_without_a_secret_too_what_is_no_step_is_waited_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "READ_SECONDS", 0.02)
    store, heard = MemoryStore(), asyncio.Queue[Step]()

    async def do(step: Step) -> dict[str, str]:
        heard.put_nowait(step)
        return {}

    store.put("hotreload/step/1", '{"number": 1}')
    store.put("hotreload/step/1/1", '[2, "done", null, {}]')
    following = asyncio.create_task(Follower(store, 1).follow(do))
    chair = Chair(store, [1])
    (ballot,) = await chair.collect_votes(await chair.call("scrub"), 30)
    assert (ballot.rank, heard.get_nowait().name) == (1, "scrub")
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


@pytest.mark.parametrize(
    "value", [10**16, "10" * 20, "-1", "\N{ARABIC-INDIC DIGIT ONE}", 1.0, None, True, ""]
)
def test_numbers_have_bounds(value: Any) -> None:
    with pytest.raises(InvalidMessage):
        parse_number(value)
    assert (parse_number("12"), parse_number(12)) == (12, 12)


def test_the_version_of_what_is_live_reaches_every_rank() -> None:
    own = Staged(Revision("id", "step_7"), None, "fp", {"leaf": 1}, 8)
    live = Generation(7, own.revision, "fp", 1.5, own.leaves, own.bytes, "run/7")
    said = live_fields(live)
    assert (parse_live(said, own), parse_live(said, own).version) == (live, "run/7")
    with pytest.raises(InvalidMessage):
        parse_live({**said, "version": "x" * 10_000}, own)


def test_texts_have_bounds_and_write_no_lines_of_their_own() -> None:
    assert parse_text("a\nb\x1b[2J\u3000é") == "a\\nb\\x1b[2J\u3000é"
    with pytest.raises(InvalidMessage):
        parse_revision({"revision": "id", "label": "x" * 10_000})
