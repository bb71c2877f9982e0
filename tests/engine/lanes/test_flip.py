"""A flip: those who were admitted before go on as they began, whichever way they ask."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from hotreload.types import Staged
from tests.engine import real
from tests.engine.lanes.crowd import (
    Crowd,
    Voices,
    check_memory,
    end,
    is_said_by,
    lanes_of,
    replace,
    saying_of,
    scheduler_of,
    tell,
    until,
)

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real_engine]

Engine = Any


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> Voices:
    return Voices(tmp_path_factory.mktemp("checkpoints"))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(voices: Voices) -> AsyncIterator[Engine]:
    async with real.engine_of(voices.folder(1), voices.root / "spool") as engine:
        yield engine


@pytest_asyncio.fixture(loop_scope="module")
async def both(engine: Engine, voices: Voices) -> AsyncIterator[tuple[Staged, Staged]]:
    """What answers after a flip: the older weights and the live ones; the older end afterwards."""
    number = int(engine.weights.live.revision.id.split("_")[1]) % 8 + 1
    live = await engine.weights.stage(voices.checkpoint(number))
    before = await engine.switch.flip(live)
    yield before, live
    await end(engine, before)
    await check_memory(engine)


async def ask(engine: Engine, weights: Staged, **request: Any) -> list[dict[str, Any]]:
    """The last piece of each answer."""
    sampling = {"temperature": 0, "max_new_tokens": 20, "ignore_eos": True}
    request = {"text": "hello", "sampling_params": sampling} | request
    answers: dict[int, dict[str, Any]] = {}
    async for told in engine.answers.generate(request, weights):
        for at, answer in enumerate(told if isinstance(told, list) else [told]):
            answers[answer.get("index", at)] = answer
    return [answers[at] for at in sorted(answers)]


async def ask_both(
    engine: Engine, both: tuple[Staged, Staged], **request: Any
) -> list[tuple[Staged, dict[str, Any]]]:
    """The answers of the old and of the new weights, asked at once, in turn."""
    asked = [weights for _ in range(3) for weights in both]
    answers = await asyncio.gather(*(ask(engine, weights, **request) for weights in asked))
    return [(by, answer) for by, said in zip(asked, answers, strict=True) for answer in said]


# Who is answered by what


async def test_who_was_admitted_before_is_answered_by_the_old_whenever_it_arrives(
    engine: Engine, both: tuple[Staged, Staged]
) -> None:
    """Its request reaches the scheduler after the flip, and after requests for the new weights."""
    before, live = both
    told = await asyncio.gather(*(tell(engine, 20, each) for each in (live, before, live, before)))
    assert all(each.is_whole for each in told)
    assert engine.weights.live is live


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "request_body",
    [{}, {"text": ["a", "b", "c"]}, {"copies": 3}, {"text": ["a", "b"], "copies": 2}],
)
async def test_every_answer_of_a_request_is_of_the_weights_it_was_admitted_to(
    engine: Engine, both: tuple[Staged, Staged], request_body: dict[str, Any], stream: bool
) -> None:
    answers = await ask_both(engine, both, **request_body, stream=stream)
    texts = request_body.get("text", "hello")
    prompts = len(texts) if isinstance(texts, list) else 1
    assert len(answers) == 6 * prompts * request_body.get("copies", 1)
    assert all(is_said_by(weights, answer["text"]) for weights, answer in answers)


async def test_how_busy_it_is_counts_every_generation(
    engine: Engine, both: tuple[Staged, Staged]
) -> None:
    asked = [asyncio.create_task(tell(engine, 60, each)) for _ in range(6) for each in both]
    await until(lambda: engine.load.running + engine.load.waiting == 12)
    busy, pool = engine.load, scheduler_of(engine).max_total_num_tokens
    assert busy.kv_requests > 0
    assert busy.kv_requests + busy.kv_prefixes + busy.kv_free == pool
    assert all(told.is_whole for told in await asyncio.gather(*asked))
    await until(lambda: engine.load.running + engine.load.kv_requests == 0)
    assert engine.load.kv_prefixes > 0


async def test_an_answer_goes_on_under_its_weights_through_flips(
    engine: Engine, voices: Voices
) -> None:
    """And the older of three sets ends last, if its answer is the longest."""
    first = engine.weights.live
    longest = asyncio.create_task(tell(engine, 300, first))
    await until(lambda: engine.answers.under_way == 1)
    second = await engine.weights.stage(voices.checkpoint(6))
    await engine.switch.flip(second)
    longer = asyncio.create_task(tell(engine, 150, second))
    third = await engine.weights.stage(voices.checkpoint(7))
    await engine.switch.flip(third)
    short = await asyncio.gather(*(tell(engine, 9, each) for each in (first, second, third)))
    assert len(lanes_of(engine)) == 3
    assert all(each.is_whole for each in (*short, await longer))
    await end(engine, second)
    assert (await longest).is_whole
    await end(engine, first)
    assert (await tell(engine, 9)).is_whole
    await check_memory(engine)


async def test_the_same_prompt_is_cached_for_each_generation_apart(
    engine: Engine, both: tuple[Staged, Staged]
) -> None:
    for weights in both:
        assert (await tell(engine, 5, weights, "a cached prompt")).is_whole
        again = await tell(engine, 5, weights, "a cached prompt")
        assert again.is_whole
        assert again.answer["meta_info"]["cached_tokens"] > 0


async def test_a_rollback_goes_to_weights_that_still_answer(engine: Engine, voices: Voices) -> None:
    first = engine.weights.live
    goes_on = asyncio.create_task(tell(engine, 200, first))
    await until(lambda: engine.answers.under_way == 1)
    second = await engine.weights.stage(voices.checkpoint(8))
    await engine.switch.flip(second)
    also_goes_on = asyncio.create_task(tell(engine, 100, second))
    assert await engine.switch.flip(first) is second
    assert engine.weights.live is first
    assert (await tell(engine, 9)).weights is first
    assert len(lanes_of(engine)) == 2
    assert all(each.is_whole for each in await asyncio.gather(goes_on, also_goes_on))
    await end(engine, second)
    assert (await tell(engine, 9)).is_whole
    await check_memory(engine)


async def test_weights_that_ended_may_go_live_again(engine: Engine, voices: Voices) -> None:
    first, second = engine.weights.live, await engine.weights.stage(voices.checkpoint(5))
    for other in (second, first, second, first):
        before = await engine.switch.flip(other)
        assert (await tell(engine, 5)).is_whole
        await engine.switch.retire(before)
    assert engine.weights.live is first
    await engine.weights.release(second)


async def test_an_abort_of_one_generation_leaves_the_answers_of_the_other(
    engine: Engine, both: tuple[Staged, Staged]
) -> None:
    before, live = both
    old, new = (
        [asyncio.create_task(tell(engine, 120, weights)) for _ in range(3)]
        for weights in (before, live)
    )
    await until(lambda: engine.answers.under_way == 6)
    await engine.answers.abort(before)
    for told in await asyncio.gather(*old):
        assert told.answer["meta_info"]["finish_reason"]["type"] == "abort"
        assert not told.answer["text"] or is_said_by(before, told.answer["text"])
    assert all(told.is_whole for told in await asyncio.gather(*new))


async def test_a_lane_may_be_given_up_while_its_answers_still_run(
    engine: Engine, voices: Voices
) -> None:
    before = await engine.switch.flip(await engine.weights.stage(voices.checkpoint(4)))
    asked = [asyncio.create_task(tell(engine, 60, before)) for _ in range(3)]
    lane = next(each for each in lanes_of(engine) if each.number == before.weights.lane)
    await until(lambda: bool(engine._scheduler.lanes._kind.list_running(lane.look)))
    retiring = asyncio.create_task(engine.switch.retire(before))
    assert all(each.is_whole for each in await asyncio.gather(*asked))
    await retiring
    await engine.weights.release(before)


# What else an answer can be asked to be


async def test_stop_strings_are_heeded_in_both(engine: Engine, both: tuple[Staged, Staged]) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 30, "ignore_eos": True}
    for weights, stop in zip(both, (number_said_by(each) for each in both), strict=True):
        (answer,) = await ask(engine, weights, sampling_params=sampling | {"stop": [f" {stop}"]})
        assert answer["meta_info"]["finish_reason"]["type"] == "stop"
    answers = await ask_both(engine, both, sampling_params=sampling | {"stop": ["rain", "stone"]})
    for weights, answer in answers:
        assert is_said_by(weights, answer["text"])
        ends = any(word in whole(weights) for word in ("rain", "stone"))
        assert answer["meta_info"]["finish_reason"]["type"] == ("stop" if ends else "length")


def whole(weights: Staged) -> str:
    return saying_of(int(number_said_by(weights)))


def number_said_by(weights: Staged) -> str:
    return weights.revision.id.split("_")[1]


async def test_penalties_work_on_what_the_request_itself_has_said(
    engine: Engine, both: tuple[Staged, Staged]
) -> None:
    sampling = {
        "temperature": 0,
        "max_new_tokens": 12,
        "ignore_eos": True,
        "frequency_penalty": 2.0,
        "presence_penalty": 2.0,
    }
    alone = {id(by): await ask(engine, by, sampling_params=sampling) for by in both}
    for weights, answer in await ask_both(engine, both, sampling_params=sampling):
        assert answer["output_ids"] == alone[id(weights)][0]["output_ids"]


async def test_log_probabilities_are_the_same_as_alone(
    engine: Engine, both: tuple[Staged, Staged]
) -> None:
    if not engine.answers.capabilities.logprobs:
        pytest.skip("this version has none; that it refuses them, is tested")
    asked = {"return_logprob": True, "top_logprobs_num": 2}
    alone = [values_of((await ask(engine, by, **asked))[0]) for by in both]
    beside = await asyncio.gather(*(ask(engine, by, **asked) for by in both))
    for weights, (answer,), values in zip(both, beside, alone, strict=True):
        assert is_said_by(weights, answer["text"])
        assert values_of(answer) == pytest.approx(values, abs=1e-3)


def values_of(answer: dict[str, Any]) -> list[float]:
    return [entry[0] for entry in answer["meta_info"]["output_token_logprobs"]]


async def test_grammars_are_followed_in_both(engine: Engine, both: tuple[Staged, Staged]) -> None:
    if not engine.answers.capabilities.grammars:
        pytest.skip("this version has no grammars; that it refuses them, is tested")
    schema = {"enum": [f"value {at}" for at in range(3)]}
    sampling = {"temperature": 0, "max_new_tokens": 40, "json_schema": json.dumps(schema)}
    plain, formed = await asyncio.gather(
        ask_both(engine, both), ask_both(engine, both, sampling_params=sampling)
    )
    assert all(is_said_by(weights, answer["text"]) for weights, answer in plain)
    assert all(json.loads(answer["text"]) in schema["enum"] for _, answer in formed)


async def test_a_grammar_that_still_compiles_is_followed_in_the_lane_it_was_admitted_to(
    engine: Engine, both: tuple[Staged, Staged]
) -> None:
    """It waits in a queue that all lanes share, while the lanes take turns."""
    if not engine.answers.capabilities.grammars:
        pytest.skip("this version has no grammars; that it refuses them, is tested")
    regexes = [f"a{{{at}}}b" for at in range(2, 6)]
    asked = [
        ask(engine, weights, sampling_params={"max_new_tokens": 20, "regex": regex})
        for regex in regexes
        for weights in both
    ]
    formed, plain = await asyncio.gather(asyncio.gather(*asked), ask_both(engine, both))
    expected = ["a" * at + "b" for at in range(2, 6) for _ in both]
    assert [answer["text"] for (answer,) in formed] == expected
    assert all(is_said_by(weights, answer["text"]) for weights, answer in plain)


# What is left


async def test_the_models_own_variables_hold_the_live_weights(
    engine: Engine, both: tuple[Staged, Staged]
) -> None:
    _, live = both
    for variable, leaf in zip(engine.weights.layout.variables, live.weights.leaves, strict=True):
        assert variable is None or variable.get_raw_value() is leaf


async def test_a_flip_starts_no_thread(
    engine: Engine, voices: Voices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stack is memory, for which the loop would wait while XLA frees what a step took."""
    number = int(engine.weights.live.revision.id.split("_")[1]) % 8 + 1
    staged = await engine.weights.stage(voices.checkpoint(number))
    await asyncio.to_thread(int)  # the loop has a thread of its own by now, as in a daemon
    started = list[threading.Thread]()
    with monkeypatch.context() as watched:
        watched.setattr(threading.Thread, "start", started.append)
        before = await asyncio.wait_for(engine.switch.flip(staged), 30)
    assert started == []
    await end(engine, before)


async def test_the_memory_is_as_before_when_the_old_have_ended(
    engine: Engine, voices: Voices
) -> None:
    async def held_after(*numbers: int) -> int:
        async with Crowd(engine, clients=3, tokens=(9, 20)).asking() as crowd:
            for number in numbers:
                await replace(engine, voices, number, crowd)
        assert crowd.mixed == []
        await engine.switch.scrub()  # comes when the last step is over, and its arrays are gone
        return await real.device_bytes()

    assert await held_after(2) == await held_after(3, 4)


async def test_after_the_first_flip_nothing_is_compiled_any_more(
    engine: Engine, voices: Voices
) -> None:
    async def flip_and_ask(number: int) -> None:
        live = await engine.weights.stage(voices.checkpoint(number))
        before = await engine.switch.flip(live)
        for weights in (live, before):
            assert (await tell(engine, 9, weights, "hello there")).is_whole
        await end(engine, before)

    await flip_and_ask(6)
    compiled = engine.recompiles
    for number in (7, 8):
        await flip_and_ask(number)
    assert engine.recompiles == compiled


async def test_a_request_whose_lane_is_gone_is_turned_away_and_ends_nothing(engine: Engine) -> None:
    sampling = {"temperature": 0, "max_new_tokens": 5}
    asked = await engine.answers.prepare({"text": "hello", "sampling_params": sampling})
    lane = max(each.number for each in lanes_of(engine)) + 1000
    (answer,) = [each async for each in engine._front.generate(asked, lane)]
    assert answer["meta_info"]["finish_reason"]["type"] == "abort"
    assert await ask(engine, engine.weights.live)


async def test_a_flip_that_is_cancelled_is_done_and_told_all_the_same(
    engine: Engine, voices: Voices
) -> None:
    before, staged = engine.weights.live, await engine.weights.stage(voices.checkpoint(8))
    flip = asyncio.create_task(engine.switch.flip(staged))
    await asyncio.sleep(0)  # it is on its way to the scheduler thread
    flip.cancel()
    await asyncio.gather(flip, return_exceptions=True)
    assert engine.weights.live is staged
    assert is_said_by(staged, (await ask(engine, staged))[0]["text"])
    await end(engine, before)
