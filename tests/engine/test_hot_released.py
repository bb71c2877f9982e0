"""The memory of an engine in a program is had for something else, and given back to it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotreload import AsyncHotEngine, HotEngine, HotTerms, Probe
from hotreload.engine.weights.leaf.leaves import Vacated
from hotreload.errors import (
    BadRequest,
    Busy,
    CheckpointIncompatible,
    DrainTimedOut,
    NotEnoughMemory,
    NothingOfThatName,
    NotServing,
    ProbeFailed,
)
from hotreload.tiny import parse_saying, write_tiny
from hotreload.tiny.weights import hand_built
from hotreload.types import Mode
from tests.engine import real
from tests.hot.on_accelerators import forbid_reading, take_for_accelerators
from tests.waiting import turn_until

pytestmark = pytest.mark.real_engine

import jax  # noqa: E402

SAYS = Probe("Who?", 12, contains="policy")
NORM = "model.norm.weight"
LONG = "The same prompt as before, and it is long enough to be worth keeping. " * 3
POOL_RELEASED = r"the KV pool is released: hot\.resume\(\)"
WEIGHTS_RELEASED = r"the weights are released: hot\.resume\(arrays\)"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("released") / "model", "policy 0")


@pytest.fixture(
    scope="module",
    # Pools and leaves are upstream's in each; who waits for whom, and where spares wait, is ours.
    params=[
        "overlap",
        pytest.param("drain", marks=pytest.mark.at_night),
        pytest.param("host", marks=pytest.mark.alike),
    ],
)
def kept(model: Path, request: pytest.FixtureRequest) -> Iterator[HotEngine]:
    terms = {
        "overlap": HotTerms(drain_timeout=60),
        "drain": HotTerms(mode="drain", drain_timeout=60),
        "host": HotTerms(memory="host", drain_timeout=60),
    }[request.param]
    how: dict[str, Any] = {"dtype": "bfloat16", "args": real.ARGS, "probes": [SAYS]}
    with HotEngine(model, device="cpu", terms=terms, **how) as hot:
        yield hot


@pytest.fixture
def hot(kept: HotEngine) -> Iterator[HotEngine]:
    """An engine that has what it needs, and has it again after the test."""
    yield kept
    if kept.released:
        kept.resume(saying(1) if "weights" in kept.released else None)


def saying(number: int, words: str = "policy") -> dict[str, Any]:
    return dict(hand_built(parse_saying(f"{words} {number}"), "qwen3"))


def said(hot: HotEngine) -> str:
    return str(hot.generate("Who serves?", real.GREEDY)["text"])


def cached(hot: HotEngine) -> int:
    return int(hot.generate(LONG, real.GREEDY)["meta_info"]["cached_tokens"])


def live_bytes(hot: HotEngine) -> int:
    """Of all weights and pools that JAX holds, once no step is under way."""
    hot._loop.run(hot.asynchronous._replica.engine.switch.between.run(lambda: None))
    return real.bytes_of_arrays(real.MATRIX_BYTES)


def about(size: int) -> Any:
    """So many bytes, but for leaves that are no matrices."""
    return pytest.approx(size, abs=1 << 16)


def pool_bytes(hot: HotEngine) -> int:
    pool = hot.asynchronous._replica.engine._scheduler.scheduler.token_to_kv_pool_allocator
    return sum(each.nbytes for each in pool.get_kvcache().kv_buffer)


def checksums(hot: HotEngine) -> dict[str, int]:
    sums: dict[str, int] = hot._loop.run(hot.asynchronous._replica.engine.weights.checksums())
    return sums


def recompiles(hot: HotEngine) -> int:
    return int(hot.asynchronous._replica.engine.recompiles)


def test_the_bytes_of_the_kv_pool_are_gone_and_answers_are_the_same_afterwards(
    hot: HotEngine,
) -> None:
    answered, leaves = hot.generate(LONG, real.GREEDY)["text"], checksums(hot)
    assert cached(hot) > 0
    generation, pool, before = hot.generation, pool_bytes(hot), live_bytes(hot)
    compiled = recompiles(hot)
    assert pool > 1_000_000
    assert hot.release() == pool
    assert hot.released == {"kv"}
    assert live_bytes(hot) == before - pool
    with pytest.raises(NotServing, match=POOL_RELEASED) as refused:
        said(hot)
    assert refused.value.code == "released"
    assert hot.release() == 0
    assert hot.resume() == generation
    assert hot.released == frozenset()
    assert live_bytes(hot) == before
    assert cached(hot) == 0
    assert hot.generate(LONG, real.GREEDY)["text"] == answered
    assert (checksums(hot), recompiles(hot)) == (leaves, compiled)


def test_the_bytes_of_the_weights_are_gone_and_new_ones_take_their_place(hot: HotEngine) -> None:
    hot.update(saying(10))
    hot.update(saying(11))
    said(hot)
    compiled, pool, before = recompiles(hot), pool_bytes(hot), live_bytes(hot)
    freed = hot.release(weights=True)
    assert hot.released == {"kv", "weights"}
    assert live_bytes(hot) == about(before - freed)
    on_device = 1 if hot.asynchronous._replica.engine.weights.spares_wait_on_host else 2
    assert freed == pool + on_device * hot.generation.bytes
    with pytest.raises(NotServing, match=WEIGHTS_RELEASED):
        said(hot)
    number = hot.generation.number
    live = hot.resume(saying(12), name="step 12")
    assert (live.number, live.revision.label, said(hot)) == (number + 1, "step 12", "policy 12")
    assert checksums(hot) == live.leaves
    assert live.fingerprint == hot.fingerprint_of(saying(12))
    assert recompiles(hot) == compiled
    hot.update(saying(13))
    assert said(hot) == "policy 13"


def test_weights_alone_may_be_released_and_no_prefix_of_theirs_is_used_again(
    hot: HotEngine,
) -> None:
    hot.update(saying(20))
    assert "policy 20" in hot.generate(LONG, real.GREEDY)["text"]
    hot.release(kv=False, weights=True)
    assert hot.released == {"weights"}
    hot.resume(saying(21))
    assert cached(hot) == 0
    assert "policy 21" in hot.generate(LONG, real.GREEDY)["text"]


def test_without_new_weights_those_of_before_come_back_from_their_folder(
    hot: HotEngine, tmp_path: Path
) -> None:
    first = hot.update(write_tiny(tmp_path / "step_30", "policy 30"))
    leaves = checksums(hot)
    hot.release(weights=True)
    again = hot.resume()
    assert (again.revision, again.leaves, said(hot)) == (first.revision, leaves, "policy 30")
    hot.update(write_tiny(tmp_path / "step_31", "policy 31"))
    hot.release(weights=True)
    assert hot.resume(number=again.number).revision == first.revision
    assert said(hot) == "policy 30"


def test_weights_without_files_must_be_given(hot: HotEngine) -> None:
    hot.update(saying(32))
    hot.release(weights=True)
    with pytest.raises(NothingOfThatName, match="has no files: give resume the weights"):
        hot.resume()
    assert hot.released == {"kv", "weights"}
    hot.resume(saying(33))
    assert said(hot) == "policy 33"


BAD: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "a part": ({NORM: saying(0)[NORM]}, CheckpointIncompatible),
    "answers badly": (saying(40, "served by step"), ProbeFailed),
}


@pytest.mark.parametrize("how", BAD)
def test_what_cannot_take_their_place_leaves_all_released(hot: HotEngine, how: str) -> None:
    given, kind = BAD[how]
    hot.update(saying(41))
    number = hot.generation.number
    hot.release(weights=True)
    freed = live_bytes(hot)
    with pytest.raises(kind):
        hot.resume(given)
    assert hot.released == {"kv", "weights"}
    assert live_bytes(hot) == freed
    assert hot.generation.number == number
    hot.resume(given, probes=()) if kind is ProbeFailed else hot.resume(saying(42))
    assert said(hot) == ("served by step 40" if kind is ProbeFailed else "policy 42")


def test_without_room_for_it_all_stays_released(
    hot: HotEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    hot.update(saying(43))
    hot.release(weights=True)
    freed, zeros, left = live_bytes(hot), Vacated.zeros, iter(range(20))

    def until_it_is_full(vacated: Vacated) -> Any:
        if next(left, None) is None:
            raise MemoryError("it is full")
        return zeros(vacated)

    with monkeypatch.context() as full:
        full.setattr(Vacated, "zeros", until_it_is_full)
        with pytest.raises(NotEnoughMemory, match="no room for the weights: it is full"):
            hot.resume(saying(44))
        with pytest.raises(NotEnoughMemory, match="no room for the KV pool: it is full"):
            hot.resume(saying(44))
    assert hot.released == {"kv", "weights"}
    assert live_bytes(hot) == freed
    hot.resume(saying(44))
    assert said(hot) == "policy 44"


def test_arrays_on_devices_take_their_place_unread(
    hot: HotEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    if hot.asynchronous._replica.engine.weights.spares_wait_on_host:
        return  # there arrays go over the host
    wanted = hot.fingerprint_of(saying(50))
    arrays = jax.tree.map(jax.device_put, saying(50))
    hot.release(weights=True)
    take_for_accelerators(monkeypatch)
    forbid_reading(monkeypatch)
    assert hot.resume(arrays).fingerprint == wanted
    assert said(hot) == "policy 50"


def test_a_rollback_across_it_needs_files(hot: HotEngine, tmp_path: Path) -> None:
    first = hot.update(write_tiny(tmp_path / "step_60", "policy 60"))
    hot.update(saying(61))
    hot.release(weights=True)
    hot.resume(saying(62))
    with pytest.raises(BadRequest, match="no longer in memory and has no files"):
        hot.rollback()
    assert hot.rollback(first.number).revision == first.revision
    assert said(hot) == "policy 60"


def test_new_weights_come_meanwhile_where_those_stay(hot: HotEngine) -> None:
    hot.release()
    if hot.mode is Mode.DRAIN:
        with pytest.raises(NotServing, match=POOL_RELEASED):
            hot.update(saying(70))
        return
    hot.update(saying(70))
    with pytest.raises(NotServing, match=POOL_RELEASED):
        hot.probe()
    hot.resume()
    assert said(hot) == "policy 70"


def test_what_is_staged_is_in_the_way(hot: HotEngine) -> None:
    with hot.stage(saying(71)) as staged:
        with pytest.raises(Busy, match=r"free it by hot\.staged\.release\(\)"):
            hot.release()
        assert hot.released == frozenset()
        staged.flip()
    assert said(hot) == "policy 71"


def test_it_waits_for_the_answers_under_way_or_ends_them(hot: HotEngine) -> None:
    hot.update(saying(80))
    for abort in (False, True):
        sampling = (
            real.ENDLESS if abort else {**real.GREEDY, "max_new_tokens": 40, "ignore_eos": True}
        )
        pieces = hot.stream("Who serves?", sampling)
        next(pieces)
        hot.release(abort=abort)
        last = [*pieces][-1]["meta_info"]
        assert (last["finish_reason"]["type"] == "abort") is abort
        hot.resume()
        assert said(hot) == "policy 80"


def test_it_waits_for_a_probe_of_what_is_live(
    hot: HotEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = hot.asynchronous
    canaries, begun, may_ask = (
        inside._replica.engine.unseen._canaries,
        asyncio.Event(),
        asyncio.Event(),
    )
    ask = canaries.ask

    async def asked_later(*asked: Any) -> None:
        begun.set()
        await may_ask.wait()
        await ask(*asked)

    async def both() -> None:
        probing = asyncio.create_task(inside.probe())
        await begun.wait()
        assert inside._gate.inside == 1
        releasing = asyncio.create_task(inside.release())
        await turn_until(lambda: inside._released_parts.is_changing)
        may_ask.set()
        await asyncio.gather(probing, releasing)

    hot.update(saying(82))
    monkeypatch.setattr(canaries, "ask", asked_later)
    hot._loop.run(both())
    assert hot.released == {"kv"}
    hot.resume()
    assert said(hot) == "policy 82"


@pytest.mark.parametrize("names", [(), (NORM,)], ids=["all of them", "a part"])
def test_an_update_that_was_checked_meanwhile_hears_of_it(
    hot: HotEngine, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is staged the live leaves are looked at: how each lies there, of which dtype."""
    inside, arrays = hot.asynchronous, jax.tree.map(jax.device_put, saying(83))
    arrays = {name: arrays[name] for name in names or arrays}
    checks, checked, may_go_on = inside._new_weights.checks, asyncio.Event(), asyncio.Event()
    check = checks.check

    async def checked_slowly(*given: Any, **more: Any) -> Any:
        checkpoint = await check(*given, **more)
        checked.set()
        await may_go_on.wait()
        return checkpoint

    async def both() -> None:
        updating = asyncio.create_task(inside.update(arrays))
        await checked.wait()
        await inside.release(weights=True)
        may_go_on.set()
        with pytest.raises(NotServing, match=WEIGHTS_RELEASED):
            await updating

    take_for_accelerators(monkeypatch)
    monkeypatch.setattr(checks, "check", checked_slowly)
    hot._loop.run(both())


async def resumed_beside(hot: AsyncHotEngine) -> None:
    resuming = asyncio.create_task(hot.resume())
    await turn_until(hot._changes._one_at_a_time.locked)
    await hot.generate("Who?", real.GREEDY)
    await resuming


def test_to_resume_where_nothing_is_released_is_nothing_to_anybody(hot: HotEngine) -> None:
    hot._loop.run(resumed_beside(hot.asynchronous))


def test_nobody_can_keep_the_memory(hot: HotEngine) -> None:
    engine = hot.asynchronous._replica.engine
    pool = engine._scheduler.scheduler.token_to_kv_pool_allocator.get_kvcache()
    held = [*pool.kv_buffer, *engine.weights.live_leaves().values()]
    hot.release(weights=True)
    assert all(array.is_deleted() for array in held)


def test_calls_that_mean_nothing_are_refused(hot: HotEngine) -> None:
    hot.update(saying(81))
    with pytest.raises(BadRequest, match="release must be told what"):
        hot.release(kv=False)
    with pytest.raises(BadRequest, match="the weights are not released: give new ones to update"):
        hot.resume(saying(82))
    assert hot.resume() == hot.generation
    hot.release(weights=True)
    with pytest.raises(BadRequest, match="new weights or a generation's number, not both"):
        hot.resume(saying(82), number=1)
    for call in (hot.probe, hot.rollback, lambda: hot.update(saying(82))):
        with pytest.raises(NotServing, match=WEIGHTS_RELEASED):
            call()


@pytest.mark.alike
async def test_on_two_devices_too_and_those_who_take_too_long_keep_it(model: Path) -> None:
    """And it is closed while its memory is released."""
    terms = HotTerms(drain_timeout=0.2)
    how: dict[str, Any] = {"dtype": "bfloat16", "args": real.ARGS, "tp": 2}
    async with await AsyncHotEngine.start(model, device="cpu", terms=terms, **how) as hot:
        pieces = hot.stream("Who?", real.ENDLESS)
        await anext(pieces)
        with pytest.raises(DrainTimedOut, match=r"1 requests .* release\(abort=True\)"):
            await hot.release()
        assert hot.released == frozenset()
        await pieces.aclose()
        releasing = asyncio.create_task(hot.release(weights=True))
        await asyncio.sleep(0)
        with pytest.raises(NotServing, match="memory is being released"):
            await hot.generate("Who?", real.GREEDY)
        await releasing
        await hot.resume(saying(90))
        assert (await hot.generate("Who?", real.GREEDY))["text"] == "policy 90"
        await hot.release(weights=True)
        assert hot.released == {"kv", "weights"}


async def test_the_end_waits_for_no_release_that_waits(model: Path) -> None:
    how: dict[str, Any] = {"dtype": "bfloat16", "args": real.ARGS}
    hot = await AsyncHotEngine.start(model, device="cpu", **how)
    pieces = hot.stream("Who?", real.ENDLESS)
    await anext(pieces)
    releasing = asyncio.create_task(hot.release())
    await asyncio.sleep(0)
    await hot.close()
    with pytest.raises(NotServing, match="closed meanwhile"):
        await releasing
    with pytest.raises(NotServing):
        await anext(pieces)
