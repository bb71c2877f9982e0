"""No grammar ends the engine, on either version: it compiles, or its request alone is refused."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
import pytest_asyncio

from hotreload.engine import versions
from hotreload.errors import BadRequest, NotServing
from tests.engine import real

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.real_engine]

Engine = Any
TAG = {
    "structures": [{"begin": "<f>", "schema": {"type": "null"}, "end": "</f>"}],
    "triggers": ["<f"],
}
MANY_RULES = "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(3000)) + '\nr3000: "a"'
TOO_SLOW = "one step of it takes|s to compile"
"""Our limits of time, which a slow machine reaches before the compiler reaches its own."""
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"json_schema": "{"}, "EOF while parsing"),
    ({"json_schema": "[]"}, "must be an object or boolean|object"),
    ({"json_schema": {"$ref": "#/nowhere"}}, "nowhere"),
    ({"json_schema": {"type": "array", "minItems": 10**7}}, "MB to compile|s to compile"),
    ({"json_schema": "{" * 5000}, "expected|recursion|EOF|key"),
    ({"regex": "("}, "unclosed group"),
    ({"regex": "(a{1000}){1000}"}, f"too many expressions|{TOO_SLOW}"),
    ({"regex": "a?" * 32_000}, f"too big|{TOO_SLOW}"),
    ({"ebnf": ""}, "is empty"),
    ({"ebnf": "x"}, "ebnf: "),
    ({"ebnf": "start: " + "(" * 5000}, "nested"),
    ({"json_schema": {"$ref": "#"}}, "no text fits it"),
    ({"structural_tag": "{"}, "structural_tag: "),
    ({"structural_tag": "[]"}, "not of the form it must have"),
    ({"structural_tag": {"structures": [], "triggers": []}}, "structural_tag: "),
    ({"structural_tag": {**TAG, "triggers": [""]}}, "trigger must not be empty"),
]
"""Each grammar that must not pass, and words of the reason."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def engine(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    folders = real.Folders(tmp_path_factory.mktemp("checkpoints"))
    async with real.engine_of(folders.folder(1), folders.root / "spool") as engine:
        yield engine


@pytest.fixture
def needs_grammars(engine: Engine) -> None:
    """What it has not it refuses, which the next test asserts."""
    if not engine.answers.capabilities.grammars:
        pytest.skip("this version has no grammars; that it refuses them, is tested")


async def test_what_is_told_of_this_release_is_what_its_engine_can(engine: Engine) -> None:
    release = versions.SUPPORTED[str(versions.installed_version("sglang-jax"))]
    assert engine.answers.capabilities.by_name() == release.can


@pytest.mark.parametrize("name", ["json_schema", "regex", "ebnf", "structural_tag"])
async def test_an_engine_without_grammars_refuses_each(engine: Engine, name: str) -> None:
    good: dict[str, Any] = {
        "json_schema": "{}",
        "regex": "a",
        "ebnf": 'start: "a"',
        "structural_tag": TAG,
    }
    asking = real.ask(engine, **{name: good[name]})
    if engine.answers.capabilities.grammars:
        assert (await asking)["meta_info"]["finish_reason"]["type"] in ("stop", "length")
        return
    with pytest.raises(BadRequest, match=f"sampling_params.{name}: sglang-jax 0.0.2 ignores it"):
        await asking


@pytest.mark.parametrize(("grammar", "words"), REFUSED, ids=lambda value: str(value)[:40])
async def test_a_grammar_that_cannot_be_is_refused_in_the_compilers_words(
    engine: Engine, grammar: dict[str, Any], words: str
) -> None:
    (name,) = grammar
    with pytest.raises(BadRequest, match=f"sampling_params.{name}: ") as caught:
        await real.ask(engine, **grammar)
    assert caught.value.param == f"sampling_params.{name}"
    assert len(str(caught.value)) < 400
    if engine.answers.capabilities.grammars:
        assert re.search(words, str(caught.value)), caught.value
    assert engine.answers.under_way == 0
    assert (await real.ask(engine))["text"] == "served by step 1"


@pytest.mark.usefixtures("needs_grammars")
async def test_requests_with_one_grammar_share_no_state_and_others_are_not_touched(
    engine: Engine,
) -> None:
    """Upstream gave one state to all of them, and a mask of nothing to those without a grammar."""
    alone = real.said(await real.ask(engine, "Who serves?", max_new_tokens=40))
    asked = [real.ask(engine, f"{n}", regex="[0-9]{3} [a-f]{4}", temperature=1) for n in range(6)]
    others = [real.ask(engine, "Who serves?", max_new_tokens=40) for _ in range(6)]
    answers = await asyncio.gather(*asked, *others)
    for answer in answers[:6]:
        assert re.fullmatch("[0-9]{3} [a-f]{4}", answer["text"]), answer
    assert [real.said(answer) for answer in answers[6:]] == [alone] * 6


@pytest.mark.usefixtures("needs_grammars")
async def test_an_answer_follows_its_schema_to_the_end(engine: Engine) -> None:
    schema = {"enum": ["served by nobody", "other"]}  # in an object the model may say only spaces
    for more in ({}, {"ignore_eos": True}, {"temperature": 1, "top_k": 5}):
        answer = await real.ask(engine, json_schema=schema, max_new_tokens=200, **more)
        assert json.loads(answer["text"]) in schema["enum"], answer


@pytest.mark.usefixtures("needs_grammars")
async def test_long_chains_of_rules_overflow_no_stack(engine: Engine) -> None:
    """The stack of a thread ends the process without a word."""
    answer = await real.ask(engine, ebnf=MANY_RULES)
    assert answer["text"] == "a"


@pytest.mark.usefixtures("needs_grammars")
async def test_an_answer_that_cannot_follow_fails_alone_and_says_why(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = await engine._prompts._grammars.compile(("regex", "[a-c]{50}"))
    whole = type(compiled).follow

    class Failing:
        def __init__(self, matcher: Any) -> None:
            self._matcher, self._left = matcher, 3

        def __getattr__(self, name: str) -> Any:
            return getattr(self._matcher, name)

        def consume_token(self, token: int) -> None:
            self._left -= 1
            self._matcher.consume_token(token if self._left else 0)

    def follow(self: Any) -> Any:
        way = whole(self)
        if self is compiled:
            way._matcher = Failing(way._matcher)
        return way

    monkeypatch.setattr(type(compiled), "follow", follow)
    other = asyncio.create_task(real.ask(engine, "x", max_new_tokens=60, ignore_eos=True))
    with pytest.raises(BadRequest, match="regex: the answer could not follow it") as caught:
        await real.ask(engine, regex="[a-c]{50}", max_new_tokens=60)
    assert caught.value.code == "grammar"
    request = {"text": "x", "stream": True, "sampling_params": {"regex": "[a-c]{50}"}}
    async with aclosing(engine.answers.generate(request)) as answers:
        await anext(answers)
        with pytest.raises(BadRequest, match="could not follow"):
            [answer async for answer in answers]
    assert (await other)["meta_info"]["completion_tokens"] == 60
    assert engine.answers.under_way == 0


@pytest.mark.usefixtures("needs_grammars")
async def test_what_fails_in_the_scheduler_fails_that_request_alone(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = await engine.answers.prepare({"text": "x", "sampling_params": {"regex": "lost[0-9]"}})
    other = asyncio.create_task(real.ask(engine, "x", max_new_tokens=60, ignore_eos=True))

    def fail(key: Any) -> None:
        raise NotServing("gone")

    monkeypatch.setattr(engine._prompts._grammars, "_find", lambda key: None)
    monkeypatch.setattr(engine._prompts._grammars._patient, "judge", fail)
    with pytest.raises(BadRequest, match="Invalid grammar"):
        [answer async for answer in engine.answers.generate(parsed)]
    assert (await other)["meta_info"]["completion_tokens"] == 60
    assert (await real.ask(engine))["text"] == "served by step 1"


@pytest.mark.usefixtures("needs_grammars")
async def test_the_program_that_tries_grammars_may_be_killed(engine: Engine) -> None:
    grammars = engine._prompts._grammars
    await grammars.compile(("regex", "before"))
    grammars._quick._program.kill()
    grammars._quick._program.wait()
    await grammars.compile(("regex", "after"))
    grammars._quick._program.stdout.close()
    with pytest.raises(NotServing, match="the program that tries grammars has ended"):
        await grammars.compile(("regex", "later"))
    await grammars.compile(("regex", "later"))


@pytest.mark.usefixtures("needs_grammars")
async def test_only_so_many_grammars_are_known_at_a_time(engine: Engine) -> None:
    """Their memory is the daemon's."""
    grammars = engine._prompts._grammars
    for at in range(6):
        await grammars.compile(("regex", f"{at}" + "|a" * 30_000))
    assert len(grammars._recent) == 4
    assert sum(len(text) for _, text in grammars._known) < 2**18
    batch = {"text": ["x"] * 9, "sampling_params": [{"regex": f"{n}"} for n in range(9)]}
    with pytest.raises(BadRequest, match="9 grammars in one request, there may be 8"):
        await engine.answers.prepare(batch)
    held = [
        await engine.answers.prepare(
            {"text": "x", "sampling_params": {"regex": f"{n}" + "|b" * 32_000}}
        )
        for n in range(16)
    ]
    with pytest.raises(NotServing, match="characters of grammars are in use") as caught:
        await engine.answers.prepare(
            {"text": "x", "sampling_params": {"regex": "b" + "|b" * 32_000}}
        )
    assert (caught.value.code, caught.value.retry_after, len(held)) == ("grammars_full", 1, 16)


async def test_a_stop_string_is_found_and_nothing_is_encoded_for_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(*args: Any, **more: Any) -> None:
        raise AssertionError("encoded on the loop")

    tokenizer = engine._parts.tokenizer_manager.tokenizer
    monkeypatch.setattr(type(tokenizer), "encode", encode)
    answer = await real.ask(engine, stop=["nothing", "by step"])
    assert answer["text"] == "served "
    assert answer["meta_info"]["finish_reason"]["matched"] == "by step"
