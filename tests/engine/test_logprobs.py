"""Log-probabilities beside requests without: on an engine that has them, nobody is harmed."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from hotreload.engine.upstream.logprobs import round_up
from hotreload.errors import BadRequest
from tests.engine import real

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real_engine]

Engine = Any
MIXES: list[dict[str, Any]] = [
    {},
    {"top_logprobs_num": 3},
    {"top_logprobs_num": 5, "logprob_start_len": 0},
    {"token_ids_logprob": [7, 8]},
    {"logprob_start_len": 0},
    {"logprob_start_len": -1, "top_logprobs_num": 2, "token_ids_logprob": [9]},
]


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    folders = real.Folders(tmp_path_factory.mktemp("checkpoints"))
    async with real.engine_of(folders.folder(1), folders.root / "spool") as engine:
        yield engine


async def ask(engine: Engine, tokens: int, **fields: Any) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    request = {"text": "Who serves?", "sampling_params": sampling, **fields}
    (answer,) = [answer async for answer in engine.answers.generate(request)]
    whole: dict[str, Any] = answer
    return whole


async def test_they_come_beside_requests_without_and_as_they_come_alone(engine: Engine) -> None:
    """Each of these ended 0.1.0rc0 when a request without ended, or began, beside it."""
    if not engine.answers.capabilities.logprobs:
        for mix in MIXES:
            with pytest.raises(BadRequest, match="return_logprob: this engine version has no"):
                await ask(engine, 3, return_logprob=True, **mix)
        return
    alone = [await ask(engine, 9, return_logprob=True, **mix) for mix in MIXES]
    plain = await ask(engine, 30)
    asking = [ask(engine, 9, return_logprob=True, **mix) for mix in MIXES]
    answers = await asyncio.gather(*asking, *(ask(engine, tokens) for tokens in (2, 30, 5)))
    for mix, answer, before in zip(MIXES, answers, alone, strict=False):
        check(mix, answer, before)
    for answer in answers[len(MIXES) :]:
        tokens = len(answer["output_ids"])
        assert answer["output_ids"] == plain["output_ids"][:tokens]


async def test_who_comes_after_one_that_asked_is_not_harmed_by_what_is_left_of_it(
    engine: Engine,
) -> None:
    """The lists it left behind were too short for the next, and ended 0.1.0rc0."""
    if not engine.answers.capabilities.logprobs:
        pytest.skip("this version has none; that it refuses them, is tested")
    stays = asyncio.create_task(ask(engine, 120))
    await ask(engine, 3, return_logprob=True, top_logprobs_num=2)
    assert not stays.done()
    comes = await ask(engine, 150)
    assert comes["text"].startswith((await stays)["text"])


def check(mix: dict[str, Any], answer: dict[str, Any], before: dict[str, Any]) -> None:
    """All that was asked for is there, and the same to a thousandth."""
    told, expected = answer["meta_info"], before["meta_info"]
    assert answer["output_ids"] == before["output_ids"]
    values = [entry[0] for entry in told["output_token_logprobs"]]
    assert values == pytest.approx(
        [entry[0] for entry in expected["output_token_logprobs"]], abs=1e-3
    )
    assert len(values) == 9
    if top := mix.get("top_logprobs_num"):
        assert {len(step) for step in told["output_top_logprobs"]} == {top}
    if ids := mix.get("token_ids_logprob"):
        steps = told["output_token_ids_logprobs"]
        assert all([entry[1] for entry in step] == ids for step in steps)


async def test_of_a_prompt_alone_its_own_are_told_and_none_of_an_answer(engine: Engine) -> None:
    if not engine.answers.capabilities.logprobs:
        pytest.skip("this version has none; that it refuses them, is tested")
    wanted: dict[str, Any] = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
    wanted["token_ids_logprob"] = [7]
    alone, usual = await asyncio.gather(ask(engine, 0, **wanted), ask(engine, 3, **wanted))
    assert (alone["text"], alone["output_ids"]) == ("", [])
    told, expected = alone["meta_info"], usual["meta_info"]
    assert (told["completion_tokens"], told["finish_reason"]["type"]) == (0, "length")
    assert told.keys() == expected.keys()
    assert {name: told[name] for name in told if name.startswith("output_")} == {
        "output_token_logprobs": [],
        "output_top_logprobs": [],
        "output_token_ids_logprobs": [],
    }
    for name in ("input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs"):
        assert len(told[name]) == len(expected[name]) == told["prompt_tokens"]


async def test_another_mix_of_what_is_asked_compiles_nothing(engine: Engine) -> None:
    """Everybody waits for what is compiled."""
    if not engine.answers.capabilities.logprobs:
        pytest.skip("this version has none; that it refuses them, is tested")
    asked = {"return_logprob": True, "top_logprobs_num": 6, "token_ids_logprob": [1]}
    await ask(engine, 3, **asked)
    known = engine.recompiles
    for top in (7, 12, 20):
        await ask(engine, 3, **{**asked, "top_logprobs_num": top, "token_ids_logprob": [top, 2]})
    assert engine.recompiles == known
    await ask(engine, 3, **{**asked, "top_logprobs_num": 65})
    known = engine.recompiles
    for top in (66, 99, 128):  # more than anybody asks for
        answer = await ask(engine, 3, **{**asked, "top_logprobs_num": top})
        assert {len(step) for step in answer["meta_info"]["output_top_logprobs"]} == {top}
    assert engine.recompiles == known


async def test_as_many_alternatives_are_made_as_are_compiled_for_everybody() -> None:
    """No other number, and never more than the vocabulary has: that would end the engine."""
    assert {round_up(most, 40) for most in range(41)} == {0, 1, 5, 20, 40}
    assert len({round_up(most, 150_000) for most in range(150_001)}) == 17
    assert all(most <= round_up(most, 150_000) <= 150_000 for most in range(150_001))
