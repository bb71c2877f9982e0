"""Weights are proven where nobody sees it: whatever they compute, clients read what they read."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest
import pytest_asyncio

from hotreload.behaviour import HEARD_ANSWER, HeardRequest
from hotreload.engine import shadow_lanes, unseen_room, versions
from hotreload.engine.answering.probe import BUILT_IN, Probe
from hotreload.engine.lanes import shadow
from hotreload.engine.lanes.bound_leaves import LeafBinder
from hotreload.engine.lanes.lanes import Lanes
from hotreload.engine.lanes.pool_shares import SHADOW_ROWS
from hotreload.engine.weights.memory import headroom
from hotreload.errors import BadRequest, NotEnoughMemory, ProbeFailed
from hotreload.features.compare.comparison import (
    BehaviourComparison,
    BothWeights,
    KnownAnswers,
    compare_both,
)
from hotreload.tiny import write_tiny
from hotreload.types import Checkpoint, Staged
from tests.engine import real
from tests.engine.lanes.crowd import (
    Crowd,
    Voices,
    check_memory,
    end,
    idle,
    lanes_of,
    saying_of,
    scheduler_of,
    tell,
    until,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real_engine]

Engine = Any
UNSURE = None if versions.installed_version("sglang-jax") == "0.0.2" else -100.0
"""A mean of log-probabilities that any answer has, where the engine tells them."""
PROBES = (
    BUILT_IN,
    Probe("Who serves?", 24, max_repeat=12),
    Probe("hello", 12, max_repeat=12, min_mean_logprob=UNSURE),
)
OVERFLOWING = "overflowing"
CANDIDATE_TOKENS = 160
"""Less than eight answers take that the engine would give at a time."""
COMPARED_IN = 86
"""Steps, with eight rows, where nothing is known."""
MOST_TURNS = 200
"""Of the loop, meanwhile; one that did not sleep turned up to six thousand times."""
LED_IN = 10
"""Those for which a checkpoint within limits waits."""


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Voices:
    return Voices(tmp_path_factory.mktemp("checkpoints"))


@pytest_asyncio.fixture(
    loop_scope="module",
    scope="module",
    # The small one has programs of its own, and so all that an engine may make different. In one as
    # large the engine's contracts prove by day.
    params=[
        pytest.param("a pool as large", marks=pytest.mark.at_night),
        pytest.param("few places", marks=pytest.mark.at_night),
        "a small pool",
    ],
)
async def engine(request: pytest.FixtureRequest, voices: Voices) -> AsyncIterator[Engine]:
    """Weights are proven in a pool like the one that serves, or in one just large enough."""
    with pytest.MonkeyPatch.context() as patched:
        if request.param == "a small pool":
            patched.setattr(shadow, "WHOLE_BYTES", 0)
        if request.param == "few places":  # a candidate has a pool as large all the same
            patched.setattr(shadow, "MANY_PLACES", 0)
        folder, spool = voices.folder(1), voices.root / "spool"
        sizes = {"compares": True, "hears": True, "candidate_tokens": CANDIDATE_TOKENS}
        async with real.engine_of(folder, spool, probes=PROBES, **sizes) as engine:
            assert engine._shadows.pool.has_own_programs == (request.param != "a pool as large")
            yield engine


async def nobody_left(engine: Engine) -> None:
    """One lane is left, and nothing of what was proven."""
    assert [lane.number for lane in lanes_of(engine)] == [engine.weights.live.weights.lane]
    await check_memory(engine)


async def test_the_first_prove_compiles_nothing_on_the_threads_that_serve(
    engine: Engine, voices: Voices
) -> None:
    await real.ask(engine, "The quick brown fox", max_new_tokens=24)
    sizes = engine.ahead.sizes_to_compile(0, 0)
    assert all(size.is_shadow for size in sizes)
    assert len(sizes) > 1  # those of several probes, also in a pool as large
    staged, before = await engine.weights.stage(voices.checkpoint(2)), engine.recompiles
    await engine.unseen.prove(staged)
    assert engine.recompiles == before
    await engine.weights.release(staged)


@pytest.mark.parametrize("prompts", [(5,), (60, 20, 40), (30,) * 16])
async def test_nor_does_what_is_asked_to_compare_weights_however_much_it_is(
    engine: Engine, prompts: Sequence[int]
) -> None:
    """Also one alone of what clients asked, in a pool that has programs of its own."""
    await engine.weights.until_ready_to_stage()
    before = engine.recompiles
    heard = [HeardRequest((7,) * tokens, (8, 9, 8)).question for tokens in prompts]
    found = await engine.unseen.ask(engine.weights.live, heard)
    assert [len(each.expected) for each in found] == [3] * len(prompts)
    assert engine.recompiles == before


async def test_what_clients_asked_is_taken_where_a_batch_of_it_finds_room(engine: Engine) -> None:
    async def is_taken(tokens: int) -> bool:
        prepared = await engine.answers.prepare({"input_ids": [[7] * tokens, [7]]})
        asked = engine.unseen.askable(prepared)
        assert asked[1] == [7]
        return 0 in asked

    most = engine.unseen._room._replayed_tokens - HEARD_ANSWER
    assert [await is_taken(most), await is_taken(most + 1)] == [True, False]
    assert engine._shadows.pool.holds([engine.unseen._room._replayed_tokens] * 16)


async def test_beside_clients_questions_are_read_in_pieces_and_compile_nothing(
    engine: Engine,
) -> None:
    """All at once was the longest gap that clients saw: 1.6 s of a tiny model beside busy loops."""
    heard = [HeardRequest((7 + at,) * 30, (8, 9, 8)).question for at in range(16)]
    await real.ask(engine, "Who serves?", max_new_tokens=2)
    alone, before = await engine.unseen.ask(engine.weights.live, heard), engine.recompiles
    client = asyncio.create_task(tell(engine, 400))
    try:
        await until(lambda: engine.answers.under_way == 1)
        with launches(engine) as seen:
            beside = await engine.unseen.ask(engine.weights.live, heard)
        assert not client.done()
    finally:
        assert (await client).is_whole
    theirs = engine.weights.live.weights.lane
    pieces = [each for each in seen if each.is_prompt and each.lane != theirs]
    assert (len(pieces), {each.tokens for each in pieces}) == (8, {64})
    assert {each.places for each in pieces} == {engine._shadows.pool.places_of(is_noted=True)}
    assert {each.padded for each in pieces} == {real.ARGS["max_running_requests"]}
    assert [each.tokens for each in beside] == [each.tokens for each in alone]
    assert engine.recompiles == before


@dataclass(frozen=True, slots=True)
class Launch:
    """A batch that was launched: of which lane, how many answers, and what it was padded to."""

    lane: int
    prompts: int
    padded: int
    is_prompt: bool
    tokens: int
    places: int


@contextmanager
def launches(engine: Engine) -> Iterator[list[Launch]]:
    """All that are launched meanwhile, in their order."""
    seen: list[Launch] = []
    rotation, worker = engine._scheduler.lanes._rotation, scheduler_of(engine).tp_worker
    launch = worker.forward_batch_generation

    def launch_and_note(batch: Any, *args: Any, **more: Any) -> Any:
        size = batch.real_bs, len(batch.seq_lens), batch.forward_mode.is_extend()
        named = len(batch.input_ids), len(batch.cache_loc)
        seen.append(Launch(rotation.current.number, *size, *named))
        return launch(batch, *args, **more)

    worker.forward_batch_generation = launch_and_note
    try:
        yield seen
    finally:
        worker.forward_batch_generation = launch


async def test_while_clients_are_answered_a_proof_has_a_step_beside_four_of_theirs(
    engine: Engine, voices: Voices
) -> None:
    assert {*await steps_between(engine, voices, within=600)} == {4}


async def test_a_proof_that_would_take_too_long_has_a_step_beside_each_of_theirs(
    engine: Engine, voices: Voices, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadow_lanes, "HURRY_EVERY", 0.001)
    assert {*(await steps_between(engine, voices, within=0))[-3:]} == {1}


async def steps_between(engine: Engine, voices: Voices, within: float) -> list[int]:
    """How many steps of a client were between two of a proof that is to take so long."""
    staged = await engine.weights.stage(voices.checkpoint(2))
    client = asyncio.create_task(tell(engine, 400))
    await until(lambda: engine.answers.under_way == 1)
    with launches(engine) as seen, pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine._scheduler.lanes._resting, "_prove_within", within)
        await engine.unseen.prove(staged)
    assert not client.done()
    theirs = engine.weights.live.weights.lane
    steps = "".join("." if each.lane == theirs else "p" for each in seen).split("p")
    assert len(steps) > 4
    assert (await client).is_whole
    await engine.weights.release(staged)
    return [*map(len, steps[1:-1])]


async def test_probes_are_asked_in_one_batch_whose_size_stays(
    engine: Engine, voices: Voices
) -> None:
    staged = await engine.weights.stage(voices.checkpoint(2))
    first, *others = PROBES
    engine.judge_by([first, *(replace(each, max_new_tokens=2) for each in others)], None)
    before = engine.recompiles
    with launches(engine) as seen:
        await engine.unseen.prove(staged)
    if engine._shadows.pool.has_own_programs:  # else each further size that serves may be compiled
        for more_or_fewer in ([*PROBES, first, first], [first]):
            engine.judge_by(more_or_fewer, None)
            await engine.unseen.prove(staged)
    engine.judge_by(PROBES, None)
    prompts = [each.prompts for each in seen]
    assert prompts == sorted(prompts, reverse=True)
    assert (prompts[0], prompts[-1]) == (3, 1)
    own = engine._shadows.pool.places_of(is_noted=False)
    alike = seen if own else seen[1:]  # prompts are padded as those of clients else
    rows = 4  # the size for three
    whole = rows * (real.ARGS["context_length"] - 1)
    assert {(each.padded, each.places) for each in alike} == {(rows, min(own or whole, whole))}
    assert engine.recompiles == before
    await engine.weights.release(staged)


async def said_by(engine: Engine, weights: Staged, prompt: str, **sampling: Any) -> dict[str, Any]:
    asked = {"text": prompt, "sampling_params": {**real.GREEDY, **sampling}}
    async with aclosing(engine.answers.generate(asked, weights)) as answers:
        answer: dict[str, Any] = await anext(answers)
    return answer


async def test_where_the_logits_of_a_piece_find_no_room_nothing_is_compared(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The forward thread would fail for it, and with it the engine."""
    room = engine.unseen._room
    for name in ("why_no_comparison", "_question_tokens", "_replayed_tokens"):
        monkeypatch.setattr(room, name, getattr(room, name))  # restored in the end
    monkeypatch.setattr(unseen_room, "MOST_LOGITS", 4 * 64 * engine.answers.limits.vocabulary - 1)
    room._make_room_to_compare(engine._shadows.pool, [24])
    assert engine.unseen.cannot_compare == (
        "the smallest size of prompts is 64 tokens; precompile_token_paddings needs a smaller one"
    )


async def test_a_comparison_takes_no_more_steps_than_the_page_says(
    engine: Engine, voices: Voices, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, before = await engine.weights.stage(voices.checkpoint(2)), engine.recompiles
    both, known = BothWeights(engine, engine.weights.live, staged), KnownAnswers()
    with launches(engine) as seen:
        assert await compare_both(both, known) is not None
    assert len(seen) <= COMPARED_IN
    comparison, turns = BehaviourComparison(both, known), list[int]()
    turn = engine._scheduler.lanes.turn

    def turn_and_count() -> None:
        turns.append(1)
        turn()

    monkeypatch.setattr(engine._scheduler.lanes, "turn", turn_and_count)
    with launches(engine) as seen:
        await comparison.lead()
    assert len(turns) < MOST_TURNS, "while prompts come it sleeps, and leaves Python's lock to them"
    assert comparison.found is not None
    assert len(seen) <= LED_IN
    assert [each.is_prompt for each in seen].count(False) <= 2, "no step goes from place to place"
    assert engine.recompiles == before
    await engine.weights.release(staged)
    await nobody_left(engine)


async def test_a_candidate_answers_many_beside_clients_in_batches_of_one_size(
    engine: Engine, voices: Voices
) -> None:
    """Its first answers compile nothing on the threads that serve, as its proof does not."""
    staged = await engine.weights.stage(voices.checkpoint(2))
    await real.ask(engine, "hello")
    client, before = asyncio.create_task(tell(engine, 400)), engine.recompiles
    await until(lambda: engine.answers.under_way == 1)
    with launches(engine) as seen:
        async with engine.unseen.as_candidate(staged):
            lane = staged.weights.lane
            asked = [said_by(engine, staged, f"{'hello ' * (n % 3)}hello") for n in range(20)]
            answers = await asyncio.gather(*asked)
    assert {each["text"] for each in answers} == {saying_of(2)}
    its_own = [each for each in seen if each.lane == lane]
    assert len({each.padded for each in its_own}) == 1
    assert 1 < max(each.prompts for each in its_own) <= SHADOW_ROWS
    assert engine.recompiles == before
    assert (await client).is_whole
    await engine.weights.release(staged)
    await nobody_left(engine)


async def test_a_candidates_answer_ends_where_its_pool_does_and_what_is_longer_is_refused(
    engine: Engine, voices: Voices, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, pool = await engine.weights.stage(voices.checkpoint(2)), engine._shadows.pool
    is_small = shadow.WHOLE_BYTES == 0
    if is_small:  # there is room for what clients ask, which is more
        monkeypatch.setattr(pool, "candidate_tokens", CANDIDATE_TOKENS)
    async with engine.unseen.as_candidate(staged):
        long = {"max_new_tokens": 480, "ignore_eos": True}
        answer = await said_by(engine, staged, "hello", **long)
        made, most = answer["meta_info"]["completion_tokens"], pool.longest - len("hello")
        assert made == (most if is_small else 480)
        assert answer["meta_info"]["finish_reason"]["type"] == "length"
        if is_small:
            with pytest.raises(BadRequest, match=r"\[command\] tokens"):
                await said_by(engine, staged, "x" * (pool.longest + 1), max_new_tokens=1)
        assert (await said_by(engine, staged, "hello"))["text"] == saying_of(2)
    await engine.weights.release(staged)
    await nobody_left(engine)


async def test_each_probe_of_a_batch_is_judged_by_itself(engine: Engine, voices: Voices) -> None:
    staged = await engine.weights.stage(voices.checkpoint(2))
    said = (await tell(engine, 24, prompt="hello")).answer["text"]
    engine.judge_by(
        [
            replace(BUILT_IN, contains="nothing of this"),
            Probe("Who serves?", 24, contains=saying_of(2)),
            Probe("hello", 24, equals="nor this"),
        ],
        None,
    )
    with pytest.raises(ProbeFailed) as refused:
        await engine.unseen.prove(staged)
    engine.judge_by(PROBES, None)
    assert saying_of(2) not in said
    first, last = refused.value.findings
    assert first.startswith("probe 'The quick brown fox': expected 'nothing of this' in it, got '")
    assert last.startswith("probe 'hello': expected 'nor this', got '")
    assert saying_of(2) in first
    assert saying_of(2) in last
    await engine.weights.release(staged)


def spoiled(voices: Voices, damage: str) -> Checkpoint:
    """A checkpoint that no probe lets pass."""
    if damage != OVERFLOWING:
        return voices.checkpoint(9, damage)
    folder = voices.root / OVERFLOWING
    if not folder.exists():
        overflowing_on_every_prompt(folder)
    return real.checked(folder)


def overflowing_on_every_prompt(folder: Any) -> None:
    """Finite weights of which the first layer's values become infinite, whatever is asked."""
    import numpy as np

    from hotreload.tiny.sayings import parse_saying
    from hotreload.tiny.weights import hand_built
    from hotreload.tiny.write import encode

    tensors = hand_built(parse_saying(saying_of(9)), "qwen3")
    values = tensors["model.layers.0.self_attn.v_proj.weight"]
    values[:] = 3e38
    tensors["model.embed_tokens.weight"][:] = 16
    assert all(np.isfinite(each.astype(np.float32)).all() for each in tensors.values())
    write_tiny(folder, saying_of(9))
    (folder / "model.safetensors").write_bytes(encode(tensors))


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("nan", "NaN or infinities"),
        ("inf", "NaN or infinities"),
        (OVERFLOWING, "NaN or infinities"),
        ("gibberish", "expected no token more than"),
        ("zeros", "expected no token more than"),
    ],
)
async def test_bad_weights_are_refused_and_clients_read_what_they_read_before(
    engine: Engine, voices: Voices, damage: str, why: str
) -> None:
    staged = await engine.weights.stage(spoiled(voices, damage))
    async with Crowd(engine, clients=4).asking() as crowd:
        await crowd.more(4)
        with pytest.raises(ProbeFailed, match=why):
            await engine.unseen.prove(staged)
        await crowd.more(4)
    assert crowd.mixed == []
    await engine.weights.release(staged)
    await nobody_left(engine)


async def test_good_weights_may_be_proven_while_two_generations_answer(
    engine: Engine, voices: Voices
) -> None:
    staged, bad = (
        await engine.weights.stage(voices.checkpoint(3)),
        await engine.weights.stage(spoiled(voices, "nan")),
    )
    before = engine.weights.live
    asked = [asyncio.create_task(tell(engine, 150, before, f"{at}")) for at in range(3)]
    await until(lambda: engine.answers.under_way == len(asked))
    await engine.switch.flip(staged)
    asked += [asyncio.create_task(tell(engine, 150, staged, f"{at}")) for at in range(3)]
    with pytest.raises(ProbeFailed):
        await engine.unseen.prove(bad)
    assert all(each.is_whole for each in await asyncio.gather(*asked))
    await engine.switch.flip(before)
    await end(engine, staged)
    await engine.weights.release(bad)
    await nobody_left(engine)


async def test_nan_in_the_pool_that_serves_would_reach_clients(
    engine: Engine, voices: Voices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Why the shadow has a pool of its own: the same weights in a lane over the shared one."""
    staged = await engine.weights.stage(spoiled(voices, "nan"))
    with monkeypatch.context() as shared:
        shared.setattr(
            Lanes,
            "open_shadow",
            lambda self, leaves, *pool, **more: self.open(
                self.prepare(leaves, self._serving_lane.number)
            ),
        )
        shared.setattr(LeafBinder, "with_pool", None)
        with pytest.raises(ProbeFailed):
            await engine.unseen.prove(staged)
    await idle(engine)
    assert await pool_has_nan(engine)
    await engine.switch.scrub()
    assert not await pool_has_nan(engine)
    with pytest.raises(ProbeFailed):
        await engine.unseen.prove(staged)
    assert not await pool_has_nan(engine)
    await engine.weights.release(staged)


async def pool_has_nan(engine: Engine) -> bool:
    import jax.numpy as jnp

    from hotreload.engine.upstream.thread.scheduler import rewrite_pools

    found: list[bool] = []

    def look(buffer: Any) -> Any:
        found.append(bool(jnp.isnan(buffer).any()))
        return buffer

    await engine.switch.between.run(lambda: rewrite_pools(engine._parts.model_runner, look))
    return any(found)


async def held(engine: Engine) -> int:
    """Bytes on the device after an answer."""
    assert (await tell(engine, 9)).is_whole
    await engine.switch.scrub()  # comes when the last step is over, and its arrays are gone
    return await real.device_bytes()


async def test_a_prove_that_is_cancelled_leaves_no_lane_and_no_memory(
    engine: Engine, voices: Voices
) -> None:
    staged = await engine.weights.stage(voices.checkpoint(4))
    await engine.unseen.prove(staged)
    before = await held(engine)
    for turns in (0, 3, 10, 40):
        proving = asyncio.create_task(engine.unseen.prove(staged))
        for _ in range(turns):
            await asyncio.sleep(0)
        proving.cancel()
        with suppress(asyncio.CancelledError):
            await proving
        assert engine.answers.under_way == 0
        await nobody_left(engine)
    proving = asyncio.create_task(engine.unseen.prove(staged))
    await until(lambda: len(lanes_of(engine)) == 2 and engine.answers.under_way > 0)
    proving.cancel()
    await asyncio.gather(proving, return_exceptions=True)
    await nobody_left(engine)
    assert await held(engine) == before
    await engine.weights.release(staged)


async def test_a_comparison_that_is_cut_short_leaves_no_lane_and_no_memory(
    engine: Engine, voices: Voices
) -> None:
    """Beside a client: whoever ends it waits for the step that is under way, and what it left."""
    staged, serving = (
        await engine.weights.stage(voices.checkpoint(6)),
        engine.weights.live.weights.lane,
    )
    before = await held(engine)
    client = asyncio.create_task(tell(engine, 200))
    await until(lambda: engine.answers.under_way == 1)
    for launched in (1, 4):
        with launches(engine) as seen:
            comparing = asyncio.create_task(
                compare_both(BothWeights(engine, engine.weights.live, staged), KnownAnswers())
            )
            await until(lambda: len(of_shadow(seen, serving)) >= launched)  # noqa: B023
            at = len(seen)
            comparing.cancel()
            await asyncio.gather(comparing, return_exceptions=True)
        assert len(of_shadow(seen[at:], serving)) <= 4  # prompts in pieces: one more
        assert [lane.number for lane in lanes_of(engine)] == [serving]
    assert not client.done()
    assert (await client).is_whole
    await nobody_left(engine)
    assert await held(engine) == before
    await engine.weights.release(staged)


def of_shadow(seen: Sequence[Launch], serving: int) -> list[Launch]:
    """Those of no lane in which clients are answered."""
    return [each for each in seen if each.lane != serving]


async def test_a_prove_leaves_the_memory_as_it_was(engine: Engine, voices: Voices) -> None:
    before = await held(engine)
    for number, damage in ((5, None), (9, "nan")):
        staged = await engine.weights.stage(voices.checkpoint(number, damage))
        with suppress(ProbeFailed):
            await engine.unseen.prove(staged)
        await engine.weights.release(staged)
    assert await held(engine) == before


async def test_the_pool_they_are_proven_in_must_fit_beside_them(
    engine: Engine, voices: Voices, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = voices.checkpoint(5)
    largest = max(held.end - held.begin for held in checkpoint.held.values())
    in_hand = largest * engine.weights.loaders.quiet.threads
    room, pool = engine.weights.live.bytes + in_hand, pool_bytes(engine)
    assert pool > 0
    monkeypatch.setattr(headroom, "host_bytes_free", lambda: room + pool)
    await engine.weights.release(await engine.weights.stage(checkpoint))
    monkeypatch.setattr(headroom, "host_bytes_free", lambda: room + pool - 1)
    with pytest.raises(NotEnoughMemory):
        await engine.weights.stage(checkpoint)


def pool_bytes(engine: Engine) -> int:
    return sum(headroom.shares_of(engine._shadows.pool.buffers).values())


async def test_an_abort_of_all_that_clients_ask_lets_a_probe_go_on(
    engine: Engine, voices: Voices
) -> None:
    staged = await engine.weights.stage(voices.checkpoint(6))
    asked = asyncio.create_task(tell(engine, 400))
    proving = asyncio.create_task(engine.unseen.prove(staged))
    await until(lambda: engine.answers.under_way == 1 + len(PROBES))
    await engine.answers.abort()
    assert (await asked).answer["meta_info"]["finish_reason"]["type"] == "abort"
    await proving
    await engine.weights.release(staged)


async def test_a_client_may_leave_and_another_come_while_weights_are_proven(
    engine: Engine, voices: Voices
) -> None:
    staged = await engine.weights.stage(voices.checkpoint(7))
    leaves = asyncio.create_task(tell(engine, 400))
    await until(lambda: engine.answers.under_way == 1)
    proving = asyncio.create_task(engine.unseen.prove(staged))
    await until(lambda: engine.answers.under_way == 1 + len(PROBES))
    leaves.cancel()
    assert (await tell(engine, 30)).is_whole
    await proving
    await engine.weights.release(staged)
    await nobody_left(engine)
