"""What a program holds, on an invented engine: its end, its updates, what becomes of a fault."""

import asyncio
import gc
import logging
import os
import tempfile
import weakref
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hotreload import AsyncHotEngine, HotTerms
from hotreload.engine.options import RANDOM_WEIGHTS
from hotreload.errors import BadRequest, EngineLost, NotServing, ProbeFailed, Superseded
from hotreload.hot import asynchronous
from hotreload.hot.engine_start import StartedEngine, run_or_lose
from hotreload.types import Checkpoint, Generation, Revision
from tests.fake_answers import FOR_EVER
from tests.fakes import HANG, FakeEngine, Steps, unread
from tests.waiting import PATIENCE, turn_until


class Checks:
    """Lets each name pass, when the test lets it."""

    def __init__(self) -> None:
        self.may_pass = asyncio.Event()
        self.may_pass.set()
        self.checking: list[Any] = []

    async def check(self, given: Any, name: str = "", *, complete: bool = False) -> Checkpoint:
        self.checking.append(given)
        await self.may_pass.wait()
        is_part = isinstance(given, Mapping) and not complete
        return replace(unread(Revision(str(given), str(given))), is_part=is_part)

    async def fingerprint_of(self, given: Any, live_sums: Any, *, complete: bool) -> Any:
        return live_sums() if isinstance(given, Mapping) and not complete else given


class Program:
    """Who holds an engine: an invented one."""

    def __init__(self, terms: HotTerms) -> None:
        self.steps = Steps()
        self.engine = FakeEngine(self.steps, Revision("first", "step 0"))
        self.checks: Any = Checks()
        self.started = started_of(self.engine, self.checks)
        self.hot = AsyncHotEngine(self.started, terms)

    def begin(self, work: Any, step: str) -> "asyncio.Task[Any]":
        """Begin work that hangs at this step."""
        self.steps.faults[step] = HANG
        return asyncio.ensure_future(work)

    async def updated(self, name: str) -> Generation:
        live = await self.hot.update(name)
        await turn_until(lambda: not self.hot._replica.fading)
        return live


def started_of(engine: Any, checks: Any = None) -> StartedEngine:
    return StartedEngine(engine, checks, Path("model"), tempfile.TemporaryDirectory())


@pytest_asyncio.fixture
async def program(request: pytest.FixtureRequest) -> AsyncIterator[Program]:
    program = Program(getattr(request, "param", HotTerms()))
    yield program
    program.steps.faults.clear()
    await program.hot.close()


async def test_it_says_what_it_is_and_so_do_staged_weights(program: Program) -> None:
    staged = await program.hot.stage("step 1")
    name = f"AsyncStagedWeights: step 1 ({staged.fingerprint})"
    assert repr(staged) == f"<{name}, waits, unproven>"
    await staged.probe()
    assert repr(staged) == f"<{name}, waits, proven>"
    await staged.flip()
    assert repr(staged) == f"<{name}, live as generation 2>"
    second = await program.hot.stage("step 2")
    await second.release()
    assert repr(second).endswith(", released>")
    assert repr(program.hot) == "<AsyncHotEngine: answers by generation 2, step 1 (step 1)>"
    await program.hot.close()
    assert repr(program.hot).startswith("<AsyncHotEngine: was closed after generation 2, ")


# --- its end ----------------------------------------------------------------------------------


async def test_a_close_that_is_cancelled_ends_the_engine_all_the_same(program: Program) -> None:
    closing = program.begin(program.hot.close(), "close")
    await program.steps.entered["close"].wait()
    again = asyncio.ensure_future(program.hot.close())
    closing.cancel()
    await asyncio.sleep(0)
    assert {closing.done(), again.done()} == {False}
    program.steps.released["close"].set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await again
    assert program.engine.is_closed


async def test_a_close_that_is_cancelled_at_once_does_so_too(program: Program) -> None:
    closing = asyncio.ensure_future(program.hot.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert program.engine.is_closed


async def test_nothing_is_held_after_the_end(program: Program) -> None:
    await program.updated("step 1")
    staged = await program.hot.stage("step 2")
    held = program.engine.weights_held
    await program.hot.close()
    assert not any(weights.is_held for weights in held)
    assert not staged.is_held


async def test_nothing_is_held_after_the_end_of_what_was_lost(program: Program) -> None:
    first = program.engine.live.weights
    program.engine.may_answer.clear()
    answering = asyncio.ensure_future(program.hot.generate("Who?"))
    await turn_until(lambda: program.hot._gate.inside == 1)
    await program.hot.update("step 1")
    assert len(program.hot._replica.fading) == 1
    staged = program.begin(program.hot.stage("step 2"), "stage")
    program.engine.die()
    with pytest.raises(EngineLost):
        await answering
    program.steps.released["stage"].set()
    await asyncio.wait({staged})
    held = [first, *program.engine.weights_held]
    await program.hot.close()
    assert not any(weights.is_held for weights in held)


@pytest.mark.parametrize("step", ["stage", "prove", "unstow"])
async def test_what_is_under_way_ends_before_the_engine_does(program: Program, step: str) -> None:
    await program.updated("step 1")
    work = program.hot.rollback() if step == "unstow" else program.hot.update("step 2")
    begun = program.begin(work, step)
    await program.steps.entered[step].wait()
    closing = asyncio.ensure_future(program.hot.close())
    await asyncio.sleep(0)
    program.steps.released[step].set()
    await closing
    assert begun.done()
    if step != "unstow":
        with pytest.raises(NotServing):
            await begun


async def test_what_was_checked_when_it_closed_is_not_loaded(program: Program) -> None:
    program.checks.may_pass.clear()
    staging = asyncio.ensure_future(program.hot.stage("step 1"))
    await turn_until(lambda: program.checks.checking == ["step 1"])
    await program.hot.close()
    program.checks.may_pass.set()
    with pytest.raises(NotServing):
        await staging
    assert not program.steps.entered["stage"].is_set()


async def test_nothing_that_was_held_by_what_ran_beside_is_kept(program: Program) -> None:
    """A task that was cancelled keeps its error, whose frames keep what was at hand."""
    tasks = [weakref.ref(task) for task in program.hot._background]
    await program.hot.close()
    gc.collect()
    assert tasks
    assert [task() for task in tasks] == [None] * len(tasks)


async def test_a_stream_ends_with_the_engine_and_nobody_need_read_it(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    pieces = [program.hot.stream(FOR_EVER) for _ in range(2)]
    for each in pieces:
        await anext(each)
    waiting = asyncio.ensure_future(anext(pieces[0]))
    async with asyncio.timeout(PATIENCE):
        await program.hot.close()
    assert program.hot._gate.inside == 0
    with pytest.raises(NotServing, match="closed meanwhile"):
        await waiting
    # What asyncio.run does at the end, with all generators at once: it logs what fails.
    await asyncio.get_running_loop().shutdown_asyncgens()
    assert not caplog.records
    assert [piece async for piece in pieces[1]] == []


async def test_an_answer_that_was_cut_off_by_the_end_is_none(program: Program) -> None:
    program.engine.may_answer.clear()
    answering = asyncio.ensure_future(program.hot.generate("Who?"))
    await turn_until(lambda: program.hot._gate.inside == 1)
    await program.hot.close()
    with pytest.raises(NotServing, match="closed meanwhile"):
        await answering


async def test_a_forks_child_has_no_engine(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    words = f"runs in process {parent}, of which this one .* is a fork.*'spawn'"
    for work in (program.hot.generate("Who?"), program.hot.update("step 1"), program.hot.probe()):
        with pytest.raises(BadRequest, match=words):
            await work
    await program.hot.close()
    assert not program.engine.is_closed
    monkeypatch.undo()
    assert (await program.hot.generate("Who?"))["text"]


async def test_what_is_of_no_kind_that_fits_is_a_bad_request(program: Program) -> None:
    hot: Any = program.hot
    for work, words in (
        (hot.generate(5), "prompt must be"),
        (hot.generate("Who?", at_least="2"), "at_least must be"),
        (hot.rollback("1"), "number must be"),
        (hot.flip("step 1"), "staged must be what stage returned, and is a str"),
        (hot.probe(5), "staged must be"),
    ):
        with pytest.raises(BadRequest, match=words):
            await work


async def test_an_engine_that_cannot_be_held_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = FakeEngine(Steps(), Revision("first"))
    started = started_of(engine)
    monkeypatch.setattr(engine, "wait_until_dead", None)

    async def start(*given: Any, **more: Any) -> StartedEngine:
        return started

    monkeypatch.setattr(asynchronous, "start", start)
    with pytest.raises(TypeError):
        await AsyncHotEngine.start("model")
    assert engine.is_closed


# --- updates ----------------------------------------------------------------------------------


async def test_updates_that_come_at_once_are_made_one_after_the_other(program: Program) -> None:
    lives = await asyncio.gather(*(program.hot.update(f"step {n}") for n in range(1, 4)))
    assert [live.number for live in lives] == [2, 3, 4]


async def test_a_rollback_overrules_an_update_that_is_being_checked(program: Program) -> None:
    await program.updated("step 1")
    program.checks.may_pass.clear()
    update = asyncio.ensure_future(program.hot.update("step 2"))
    await turn_until(lambda: "step 2" in program.checks.checking)
    assert (await program.hot.rollback()).number == 3
    await turn_until(lambda: not program.hot._replica.fading)
    program.steps.entered["stage"].clear()
    program.checks.may_pass.set()
    with pytest.raises(Superseded):
        await update
    assert program.hot.generation.number == 3
    assert not program.steps.entered["stage"].is_set()
    assert program.hot._replica.previous is not None  # it made no room


async def test_a_part_is_called_by_the_names_that_are_said(program: Program) -> None:
    live = await program.hot.update({"norm": 1}, names={"norm": "model.norm.weight"})
    assert live.number == 2
    assert program.checks.checking == [{"model.norm.weight": 1}]
    with pytest.raises(BadRequest, match="names does not know 'norm'"):
        await program.hot.stage({"norm": 1}, names={})


async def test_upon_random_weights_there_is_nothing_that_could_stay(program: Program) -> None:
    program.hot._replica.live = replace(program.hot.generation, revision=RANDOM_WEIGHTS)
    hot, words = program.hot, "nothing is live yet but random weights.*all of them the first time"
    for work in (hot.stage({}), hot.update({}), hot.fingerprint_of({})):
        with pytest.raises(BadRequest, match=words):
            await work
    assert not program.steps.entered["stage"].is_set()
    await program.updated("step 1")  # a folder, which is whole
    assert (await hot.update({})).number == 3


async def test_where_no_part_can_be_loaded_it_costs_nothing(program: Program) -> None:
    await program.updated("step 1")
    program.engine.takes_no_part = BadRequest("give all of them")
    with pytest.raises(BadRequest, match="give all of them"):
        await program.hot.update({"norm": 1})
    assert program.hot._replica.previous is not None  # it made no room


async def test_an_update_without_probes_asks_none_and_says_so(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "hotreload.hot"):
        await program.updated("step 1")
        assert len(program.engine.proofs) == 1
        assert "generation.unproven" not in caplog.text
        live = await program.hot.update("bad step", probes=())
    assert len(program.engine.proofs) == 1
    assert (live.number, program.hot.generation) == (3, live)
    (told,) = (each for each in caplog.records if each.getMessage() == "generation.unproven")
    assert vars(told)["generation"] == 3


@pytest.mark.parametrize("program", [HotTerms(mode="drain")], indirect=True)
async def test_where_swaps_drain_it_asks_none_either(program: Program) -> None:
    program.steps.faults["probe"] = ValueError("it was asked")
    assert (await program.hot.update("step 1", probes=())).number == 2
    with pytest.raises(ProbeFailed):
        await program.hot.update("step 2")


# --- what is under way ------------------------------------------------------------------------


async def test_answers_under_way_are_ended_by_their_name_or_all_of_them(program: Program) -> None:
    program.engine.may_answer.clear()
    answering = [
        asyncio.ensure_future(program.hot.generate("Who?", rid=rid)) for rid in ("a", "b", "c")
    ]
    await turn_until(lambda: program.engine.running == 3)
    assert await program.hot.abort("b") == 1
    assert (await answering[1])["meta_info"]["finish_reason"]["code"] == "asked"
    assert await program.hot.abort("b") == 0
    assert await program.hot.abort() == 2
    for each in await asyncio.gather(answering[0], answering[2]):
        assert each["meta_info"]["finish_reason"]["type"] == "abort"
    with pytest.raises(BadRequest, match="rid must be a text, not 5"):
        await program.hot.abort(5)  # type: ignore[arg-type]


# --- what breaks ------------------------------------------------------------------------------


async def test_an_engine_is_lost_with_any_part_of_ours_and_that_is_said(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    program.steps.faults["retire"] = KeyError("a bug")
    with caplog.at_level(logging.WARNING):
        await program.hot.update("step 1")
        await turn_until(lambda: program.hot._gate.is_lost)
    with pytest.raises(EngineLost, match=r"a bug.*close it, and start another"):
        await program.hot.generate("Who?")
    assert any("engine_lost" in record.getMessage() for record in caplog.records)


async def test_a_task_that_ends_by_itself_loses_the_engine(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    async def breaks() -> Any:
        raise KeyError("a bug")

    await run_or_lose(program.hot._replica, breaks())
    with pytest.raises(EngineLost, match="a part of hotreload broke: KeyError"):
        await program.hot.generate("Who?")
    assert "hot.broken" in caplog.text


@pytest.mark.parametrize("program", [HotTerms(probe_timeout=0.01)], indirect=True)
async def test_a_probe_that_hangs_fails(program: Program) -> None:
    program.steps.faults["probe"] = HANG
    with pytest.raises(ProbeFailed, match=r"within 0\.01 s"):
        await program.hot.probe()


async def test_weights_that_are_probed_while_live_do_not_end_before_that(program: Program) -> None:
    probing = program.begin(program.hot.probe(), "probe")
    await program.steps.entered["probe"].wait()
    assert program.hot._gate.inside == 1
    await program.hot.update("step 1")
    assert (await program.hot.generate("Who?"))["meta_info"]["generation"] == 2
    assert len(program.hot._replica.fading) == 1
    program.steps.released["probe"].set()
    await probing
    await turn_until(lambda: not program.hot._replica.fading)


async def test_pieces_are_asked_for_with_stream(program: Program) -> None:
    with pytest.raises(BadRequest, match="call stream"):
        await program.hot.generate("Who?", stream=True)


async def test_any_number_of_requests_may_wait_for_a_generation(program: Program) -> None:
    asked = [asyncio.ensure_future(program.hot.generate("Who?", at_least=2)) for _ in range(1025)]
    await turn_until(lambda: program.hot._gate.awaiting == 1025)
    await program.hot.update("step 1")
    answers = await asyncio.gather(*asked)
    assert {answer["meta_info"]["generation"] for answer in answers} == {2}
