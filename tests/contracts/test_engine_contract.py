"""What every RunningEngine promises the core, the server and the daemon.

The same tests run on the fake and on the real one, and use every member of the port.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    suppress,
)
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import pytest
import pytest_asyncio

from hotreload.behaviour import HEARD_ANSWER, AnswerCheck, Led, Question
from hotreload.engine.answering.encoder_copy import CopiedEncoder
from hotreload.engine.answering.probe import Probe
from hotreload.engine.capabilities import BatchSize
from hotreload.engine.options import EngineOptions
from hotreload.engine.sglang import SglangEngine
from hotreload.engine.weights.sets import StagingOptions
from hotreload.errors import (
    AnswerNonfinite,
    BadRequest,
    CheckpointIncompatible,
    ConfigError,
    EngineLost,
    ProbeFailed,
    TryAgain,
)
from hotreload.features.compare.comparison import BothWeights, KnownAnswers, compare_both
from hotreload.hosts.engine.engine_over_ranks import EngineOverRanks
from hotreload.life.running_engine import RunningEngine
from hotreload.types import Checkpoint, Noise, Revision, Staged, TensorSpec
from tests.engine import real
from tests.fake_answers import FOR_EVER
from tests.fakes import OVERFLOWS_ON, FakeEngine, Steps, unread
from tests.hosts.slice import Slice
from tests.hosts.slice import running as over_ranks
from tests.waiting import turn_until
from tests.words.engine import EngineOfWords

pytestmark = pytest.mark.asyncio(loop_scope="module")

SWAPS = 8
ASK: dict[str, Any] = {"text": "Who serves?", "sampling_params": real.GREEDY}
BATCH = ASK | {"text": ["Who serves?", "Who else?"]}
STREAM = {"stream": True}
ENDLESS = {"text": FOR_EVER, "sampling_params": real.ENDLESS} | STREAM


def expecting(*contained: str) -> list[Question]:
    """Questions, each with a text that the answer is to hold."""
    return [
        Question(f"Who is {at}?", 12, check=AnswerCheck("contains", text), place=f"line {at}")
        for at, text in enumerate(contained)
    ]


CORPUS = (*expecting("1", "1", "1", "1", "1", "2", ""), Question("Any. " * 30, 20)) * 2
"""Of those that expect something 1 answers 12 of 14, and 2 answers 4."""


class EngineCase(Protocol):
    """An engine that serves number 1, and what a test needs to look at it from outside."""

    @property
    def engine(self) -> RunningEngine: ...

    def another(self) -> AbstractAsyncContextManager[RunningEngine]:
        """One more that serves number 1; it may be killed."""
        ...

    def twin(self) -> AbstractAsyncContextManager[RunningEngine]:
        """One more on other devices, which began with what is live in the engine."""
        ...

    def kill(self, engine: RunningEngine) -> None:
        """Make a part of it fail."""
        ...

    def checkpoint(self, number: int) -> Checkpoint:
        """A good checkpoint."""
        ...

    def overflowing_checkpoint(self) -> Checkpoint:
        """One that answers well, but makes no numbers of prompts with OVERFLOWS_ON."""
        ...

    def busy_with(self) -> int:
        """How many prompts the engine is busy with."""
        ...

    def bad_checkpoint(self) -> Checkpoint:
        """One that loads, answers nonsense, and leaves poison in the caches."""
        ...

    async def answer(self) -> object:
        """What the live weights answer, always to the same prompt."""
        ...

    async def fresh_answer(self, number: int) -> object:
        """What a fresh engine that booted from the checkpoint answers to it."""
        ...

    async def held(self) -> int:
        """How much is held: sets of weights, or bytes."""
        ...


class FakeCase:
    def __init__(self, *, spares_wait_on_host: bool = False) -> None:
        self._fake = FakeEngine(Steps(), Revision("1", "step_1"))
        why = "spares wait on the host" if spares_wait_on_host else None
        self._fake.cannot_compare = why
        self._fake.spares_wait_on_host = spares_wait_on_host
        self._fake.cannot_overlap = "one set at a time" if spares_wait_on_host else None
        self._fake.sizes = [BatchSize(False, 1, 1, 8), BatchSize(True, 4, 64, 32)]

    @property
    def engine(self) -> RunningEngine:
        return self._fake

    @asynccontextmanager
    async def another(self) -> AsyncIterator[RunningEngine]:
        yield FakeEngine(Steps(), Revision("1", "step_1"))

    @asynccontextmanager
    async def twin(self) -> AsyncIterator[RunningEngine]:
        fake = FakeEngine(Steps(), self._fake.live.revision)
        fake.spares_wait_on_host = self._fake.spares_wait_on_host
        fake.cannot_overlap = self._fake.cannot_overlap
        yield fake

    def kill(self, engine: RunningEngine) -> None:
        assert isinstance(engine, FakeEngine)
        engine.die()

    def checkpoint(self, number: int) -> Checkpoint:
        tensors = {"leaf": TensorSpec((1,), "BF16")}
        return unread(Revision(str(number), f"step_{number}"), tensors=tensors)

    def overflowing_checkpoint(self) -> Checkpoint:
        return unread(Revision("overflow", "step_overflow"))

    def busy_with(self) -> int:
        return self._fake.running

    def bad_checkpoint(self) -> Checkpoint:
        return unread(Revision("bad", "bad"))

    async def answer(self) -> object:
        return self._fake.answer()

    async def fresh_answer(self, number: int) -> object:
        return FakeEngine(Steps(), Revision(str(number), f"step_{number}")).answer()

    async def held(self) -> int:
        return self._fake.sets_held


class WordsCase(FakeCase):
    """The engine of whole daemons in tests, which reads real files."""

    def __init__(self, fake: EngineOfWords, folders: real.Folders) -> None:
        self._fake = fake
        self._folders = folders

    @asynccontextmanager
    async def another(self) -> AsyncIterator[RunningEngine]:
        yield await engine_of_words(self._folders)

    @asynccontextmanager
    async def twin(self) -> AsyncIterator[RunningEngine]:
        yield await engine_of_words(self._folders)

    def checkpoint(self, number: int) -> Checkpoint:
        return self._folders.checkpoint(number)

    def overflowing_checkpoint(self) -> Checkpoint:
        folder = self._folders.root / "overflow_8"
        return real.checked(real.overflowing(folder, "served by step 8"))

    def bad_checkpoint(self) -> Checkpoint:
        return self._folders.checkpoint(9, "gibberish")

    async def fresh_answer(self, number: int) -> object:
        return (await engine_of_words(self._folders, number)).answer()


async def engine_of_words(folders: real.Folders, number: int = 1) -> EngineOfWords:
    checkpoint = folders.checkpoint(number)
    terms = StagingOptions(folders.root / "spool")
    options = EngineOptions(checkpoint.path, device="cpu", warm_batches=0)
    return await EngineOfWords.start(
        options, terms=terms, revision=checkpoint.revision, checkpoint=checkpoint
    )


class FakeRanksCase(FakeCase):
    """Rank 0 of several, whose others follow; each has a fake of its own."""

    def __init__(self, ranks: Slice) -> None:
        super().__init__()
        self._ranks = ranks
        self._fake = ranks.own
        self._over = ranks.over

    @property
    def engine(self) -> RunningEngine:
        return self._over

    @asynccontextmanager
    async def another(self) -> AsyncIterator[RunningEngine]:
        async with over_ranks(Revision("1", "step_1")) as ranks:
            yield ranks.over

    def kill(self, engine: RunningEngine) -> None:
        engine.lose("it was killed")

    async def held(self) -> int:
        (held,) = set(self._ranks.sets)
        return held


class RealCase:
    def __init__(
        self,
        engine: SglangEngine,
        folders: real.Folders,
        tp: int,
        memory: str,
        fresh: dict[int, object],
    ) -> None:
        self.engine = engine
        self._folders = folders
        self._tp = tp
        self._memory = memory
        self._fresh = fresh

    @asynccontextmanager
    async def another(self) -> AsyncIterator[RunningEngine]:
        spool = self._folders.root / "another"
        async with real.engine_of(self._folders.folder(1), spool, tp=self._tp) as engine:
            yield engine

    @asynccontextmanager
    async def twin(self) -> AsyncIterator[RunningEngine]:
        folder, spool = self._folders.folder(1), self._folders.root / "twin"
        apart = {"tp": self._tp, "first_device": self._tp, "memory": self._memory}
        async with real.engine_of(folder, spool, twin=self.engine, **apart) as engine:
            yield engine

    def kill(self, engine: RunningEngine) -> None:
        engine.lose("it was killed")

    def checkpoint(self, number: int) -> Checkpoint:
        return self._folders.checkpoint(number)

    def overflowing_checkpoint(self) -> Checkpoint:
        folder = self._folders.root / "step_8"
        return real.checked(real.overflowing(folder, "served by step 8"))

    def busy_with(self) -> int:
        return self.engine.answers.under_way

    def bad_checkpoint(self) -> Checkpoint:
        return self._folders.checkpoint(9, "nan")

    async def answer(self) -> object:
        return real.said(await real.ask(self.engine))

    async def fresh_answer(self, number: int) -> object:
        if number not in self._fresh:
            folder = self._folders.folder(number)
            async with real.engine_of(folder, self._folders.root / "fresh") as fresh:
                self._fresh[number] = real.said(await real.ask(fresh))
        return self._fresh[number]

    async def held(self) -> int:
        await self.answer()
        await (
            self.engine.switch.scrub()
        )  # comes when the last step is over, and its arrays are gone
        return await real.device_bytes()


@asynccontextmanager
async def real_case(
    root: Path, tp: int, memory: str, fresh: dict[int, object]
) -> AsyncIterator[RealCase]:
    folders, spool = real.Folders(root), root / "spool"
    more: dict[str, Any] = {"memory": memory, "compares": True, "corpus": CORPUS}
    more["args"] = {"max_running_requests": 16}  # so that there are sizes of batches between
    async with real.engine_of(folders.folder(1), spool, tp=tp, **more) as engine:
        case = RealCase(engine, folders, tp, memory, fresh)
        await case.answer()  # compiles, which leaves small constants behind
        yield case


@pytest.fixture(scope="module")
def fresh() -> dict[int, object]:
    """What a fresh real engine answered, by its checkpoint; one start tells it to all."""
    return {}


@pytest_asyncio.fixture(
    loop_scope="module",
    scope="module",
    params=[
        "fake",
        "fake with one set on the device",
        "fake over several ranks",
        "fake of words",
        pytest.param("real", marks=pytest.mark.real_engine),
        pytest.param("real on two devices", marks=[pytest.mark.real_engine, pytest.mark.at_night]),
        # That one set is there at a time is our doing; on the newer engine test_trading.py has it.
        pytest.param(
            "real with one set on the device", marks=[pytest.mark.real_engine, pytest.mark.alike]
        ),
    ],
)
async def engine_case(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    fresh: dict[int, object],
) -> AsyncIterator[EngineCase]:
    of_one_set = "one set" in request.param
    if "ranks" in request.param:
        async with over_ranks(Revision("1", "step_1"), within=None) as ranks:
            yield FakeRanksCase(ranks)
        return
    if "words" in request.param:
        folders = real.Folders(tmp_path_factory.mktemp("engine"))
        yield WordsCase(await engine_of_words(folders), folders)
        return
    if request.param.startswith("fake"):
        yield FakeCase(spares_wait_on_host=of_one_set)
        return
    tp, memory = 2 if "two devices" in request.param else 1, "host" if of_one_set else "double"
    async with real_case(tmp_path_factory.mktemp("engine"), tp, memory, fresh) as case:
        yield case


@pytest.fixture
def on_one_host(engine_case: EngineCase) -> None:
    """An engine over several does less, and says so."""
    if isinstance(engine_case.engine, EngineOverRanks):
        pytest.skip("an engine over several hosts refuses it")


async def test_exchange_twice_is_the_identity(engine_case: EngineCase) -> None:
    engine, before = engine_case.engine, await engine_case.answer()
    staged = await engine.weights.stage(engine_case.checkpoint(2))
    first = await engine.switch.exchange(staged)
    second = await engine.switch.exchange(first)
    assert second is staged
    assert await engine_case.answer() == before
    await engine.weights.release(second)


async def test_staging_leaves_the_live_answers_as_they_are(engine_case: EngineCase) -> None:
    before = await engine_case.answer()
    staging = asyncio.create_task(engine_case.engine.weights.stage(engine_case.checkpoint(2)))
    during = await engine_case.answer()
    staged = await staging
    assert [during, await engine_case.answer()] == [before, before]
    await engine_case.engine.weights.release(staged)


async def test_it_says_how_far_it_is_with_a_checkpoint(engine_case: EngineCase) -> None:
    engine, checkpoint = engine_case.engine, engine_case.checkpoint(2)
    staging = asyncio.create_task(engine.weights.stage(checkpoint))
    while engine.weights.staging_progress is None:  # noqa: ASYNC110 (it is told for a moment, and by no event)
        await asyncio.sleep(0)
    told = engine.weights.staging_progress
    staged = await staging
    assert told.of == checkpoint.bytes
    assert engine.weights.staging_progress is None
    await engine.weights.release(staged)


async def test_a_loader_that_makes_what_upstreams_makes_is_not_distrusted(
    engine_case: EngineCase,
) -> None:
    engine = engine_case.engine
    distrusted = asyncio.create_task(engine.weights.wait_for_distrust())
    await engine.weights.release(await engine.weights.stage(engine_case.checkpoint(2)))
    assert not distrusted.done()
    distrusted.cancel()


async def test_exchanged_weights_answer_like_a_fresh_engine(engine_case: EngineCase) -> None:
    engine = engine_case.engine
    await engine_case.answer()  # fills the caches with what the old weights computed
    old = await engine.switch.exchange(await engine.weights.stage(engine_case.checkpoint(2)))
    assert await engine_case.answer() == await engine_case.fresh_answer(2)
    await engine.weights.release(await engine.switch.exchange(old))


async def test_exchange_names_what_was_live(engine_case: EngineCase) -> None:
    engine = engine_case.engine
    staged = await engine.weights.stage(engine_case.checkpoint(2))
    old = await engine.switch.exchange(staged)
    assert await engine.switch.exchange(old) is staged
    assert staged.revision == engine_case.checkpoint(2).revision
    assert old.fingerprint != staged.fingerprint
    await engine.weights.release(staged)


async def test_a_cancelled_stage_leaves_nothing(engine_case: EngineCase) -> None:
    engine, before = engine_case.engine, await engine_case.held()
    staging = asyncio.create_task(engine.weights.stage(engine_case.checkpoint(2)))
    await asyncio.sleep(0)
    staging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await staging
    assert await engine_case.held() == before


async def test_many_swaps_hold_no_more_than_one_set(engine_case: EngineCase) -> None:
    engine, before, answer = (
        engine_case.engine,
        await engine_case.held(),
        await engine_case.answer(),
    )
    checkpoints = [engine_case.checkpoint(2), engine_case.checkpoint(1)]
    for swap in range(SWAPS):
        await engine.weights.release(
            await engine.switch.exchange(await engine.weights.stage(checkpoints[swap % 2]))
        )
    assert await engine_case.answer() == answer
    assert await engine_case.held() == before


async def test_compiling_for_a_size_of_batches_changes_no_answer_and_holds_up_nobody(
    engine_case: EngineCase,
) -> None:
    engine, before = engine_case.engine, await engine_case.answer()
    engine.count_anew()
    for size in engine.ahead.sizes_to_compile(1, 64):
        await engine.ahead.compile_for(size)
    for is_kept in (True, False):  # what is compiled holds this request
        engine.ahead.keep_to_compiled(is_kept)
        assert await engine_case.answer() == before
    assert engine.recompiles == 0
    assert all(size.is_shadow for size in engine.ahead.sizes_to_compile(0, 64))


async def test_bad_weights_fail_the_probe_and_a_rollback_leaves_no_trace(
    engine_case: EngineCase,
) -> None:
    engine, before = engine_case.engine, await engine_case.answer()
    await engine.unseen.probe()
    await engine.unseen.probe(briefly=True)
    old = await engine.switch.exchange(await engine.weights.stage(engine_case.bad_checkpoint()))
    with pytest.raises(ProbeFailed):
        await engine.unseen.probe()
    bad = await engine.switch.exchange(old)
    await engine.switch.scrub()
    assert await engine_case.answer() == before
    await engine.unseen.probe()
    await engine.weights.release(bad)


async def test_probes_it_cannot_ask_are_refused_and_change_nothing(
    engine_case: EngineCase,
) -> None:
    engine = engine_case.engine
    with pytest.raises(ConfigError, match=r"\[\[probe\]\]"):
        engine.judge_by([Probe("too long " * 4000, max_new_tokens=2)], None)
    await engine.unseen.probe()


@pytest.mark.usefixtures("on_one_host")
async def test_stowed_weights_come_back_as_they_were(engine_case: EngineCase) -> None:
    engine, before, answer = (
        engine_case.engine,
        await engine_case.held(),
        await engine_case.answer(),
    )
    old = await engine.switch.exchange(await engine.weights.stage(engine_case.checkpoint(2)))
    fingerprint = old.fingerprint
    back = await engine.weights.unstow(await engine.weights.stow(old))
    assert back.fingerprint == fingerprint
    await engine.weights.release(await engine.switch.exchange(back))
    assert await engine_case.answer() == answer
    assert await engine_case.held() == before


async def test_unstow_keeps_what_is_where_spare_weights_wait(engine_case: EngineCase) -> None:
    staged = await engine_case.engine.weights.stage(engine_case.checkpoint(2))
    assert await engine_case.engine.weights.unstow(staged) is staged
    await engine_case.engine.weights.release(staged)


@pytest.mark.usefixtures("on_one_host")
async def test_equal_noise_makes_equal_weights_and_other_noise_others(
    engine_case: EngineCase,
) -> None:
    engine, name = engine_case.engine, Revision("noisy")
    same = [await engine.weights.perturb(name, Noise(7, 0.01, 1)) for _ in range(2)]
    other = [await engine.weights.perturb(name, n) for n in (Noise(8, 0.01, 1), Noise(7, 0.02, 1))]
    old = await engine.switch.exchange(same[0])
    found = [staged.fingerprint for staged in (old, *same, *other)]
    assert found[1] == found[2]
    assert len(set(found)) == 4
    assert same[0].revision == name
    for staged in (await engine.switch.exchange(old), same[1], *other):
        await engine.weights.release(staged)


@pytest.mark.usefixtures("on_one_host")
async def test_noise_touches_nothing_that_is_live_and_leaves_nothing(
    engine_case: EngineCase,
) -> None:
    engine, before = engine_case.engine, await engine_case.held()
    answer = await engine_case.answer()
    noisy = await engine.weights.perturb(Revision("noisy"), Noise(7, 0.5, 1))
    assert await engine_case.answer() == answer
    old = await engine.switch.exchange(noisy)
    assert await engine.switch.exchange(old) is noisy
    await engine.switch.scrub()
    await engine.weights.release(noisy)
    assert await engine_case.answer() == answer
    assert await engine_case.held() == before


# --- what it answers -------------------------------------------------------------------------


async def answers(engine: RunningEngine, request: dict[str, Any]) -> list[Any]:
    async with aclosing(engine.answers.generate(await engine.answers.prepare(request))) as items:
        return await rest_of(items)


async def rest_of(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


def ended(answer: dict[str, Any]) -> Any:
    return answer["meta_info"]["finish_reason"]


async def test_what_is_not_streamed_is_one_whole_answer_and_of_a_batch_a_list(
    engine_case: EngineCase,
) -> None:
    (answer,) = await answers(engine_case.engine, ASK)
    assert answer["text"]
    assert answer["meta_info"]["prompt_tokens"] > 0
    assert answer["meta_info"]["completion_tokens"] > 0
    assert ended(answer)["type"] in ("stop", "length")
    (batch,) = await answers(engine_case.engine, BATCH)
    assert [bool(ended(each)) for each in batch] == [True, True]
    (copies,) = await answers(engine_case.engine, ASK | {"copies": 3})
    assert [each["text"] for each in copies] == [answer["text"]] * 3


async def test_a_streamed_answer_grows_until_it_is_the_whole_one(engine_case: EngineCase) -> None:
    (whole,) = await answers(engine_case.engine, ASK)
    pieces = await answers(engine_case.engine, ASK | STREAM)
    for before, after in pairwise(pieces):
        assert after["text"].startswith(before["text"])
        assert ended(before) is None
    assert pieces[-1]["text"] == whole["text"]
    assert ended(pieces[-1])["type"] == ended(whole)["type"]


async def test_a_stream_may_have_its_text_at_its_end_alone(engine_case: EngineCase) -> None:
    (whole,) = await answers(engine_case.engine, ASK)
    pieces = await answers(engine_case.engine, ASK | STREAM | {"text_at_end": True})
    assert ["text" in piece for piece in pieces] == [bool(ended(piece)) for piece in pieces]
    assert pieces[-1]["text"] == whole["text"]
    for before, after in pairwise(pieces):
        made = (each["meta_info"]["completion_tokens"] for each in (before, after))
        assert next(made) < next(made)


async def test_each_piece_of_a_streamed_batch_says_of_which_prompt_it_is(
    engine_case: EngineCase,
) -> None:
    pieces = await answers(engine_case.engine, BATCH | STREAM)
    last = {piece["index"]: piece for piece in pieces}
    assert sorted(last) == [0, 1]
    assert all(ended(piece) for piece in last.values())


async def test_what_cannot_be_served_is_refused_before_it_is_answered(
    engine_case: EngineCase,
) -> None:
    with pytest.raises(BadRequest) as refused:
        await engine_case.engine.answers.prepare(ASK | {"no_such_parameter": 1})
    assert refused.value.param == "no_such_parameter"


async def test_what_was_prepared_before_an_exchange_is_answered_by_what_is_live(
    engine_case: EngineCase,
) -> None:
    engine = engine_case.engine
    prepared = await engine.answers.prepare(ASK)
    (before,) = await answers(engine, ASK)
    old = await engine.switch.exchange(await engine.weights.stage(engine_case.checkpoint(2)))
    (fresh,) = await answers(engine, ASK)
    async with aclosing(engine.answers.generate(prepared)) as items:
        answer: Any = await anext(items)
    assert answer["text"] == fresh["text"] != before["text"]
    await engine.weights.release(await engine.switch.exchange(old))


async def test_an_answer_that_nobody_waits_for_any_more_is_given_up(
    engine_case: EngineCase,
) -> None:
    engine = engine_case.engine
    async with aclosing(engine.answers.generate(await engine.answers.prepare(ENDLESS))) as items:
        await anext(items)
        assert engine_case.busy_with() == 1
    assert engine_case.busy_with() == 0


async def test_an_abort_ends_what_is_under_way_and_says_why(engine_case: EngineCase) -> None:
    engine = engine_case.engine
    async with aclosing(engine.answers.generate(await engine.answers.prepare(ENDLESS))) as items:
        await anext(items)
        await engine.answers.abort()
        last = (await rest_of(items))[-1]
    assert (ended(last)["type"], ended(last)["code"]) == ("abort", "swap")
    (answer,) = await answers(engine, ASK)
    assert ended(answer)["type"] != "abort"


AS_ASKED = {
    "type": "abort",
    "message": "Aborted",
    "status_code": None,
    "err_type": None,
    "code": "asked",
}


async def test_it_ends_the_answers_that_somebody_asked_to_end_and_no_others(
    engine_case: EngineCase,
) -> None:
    engine = engine_case.engine
    mine = engine.answers.generate(await engine.answers.prepare(ENDLESS | {"rid": "mine"}))
    theirs = engine.answers.generate(await engine.answers.prepare(ENDLESS | {"rid": "theirs"}))
    for items in (mine, theirs):
        await anext(items)
    assert await engine.answers.abort_asked("mi") == 0
    assert await engine.answers.abort_asked("mine") == 1
    assert ended((await rest_of(mine))[-1]) == AS_ASKED
    assert engine_case.busy_with() == 1
    assert await engine.answers.abort_asked(None) == 1
    assert ended((await rest_of(theirs))[-1]) == AS_ASKED
    assert ended((await answers(engine, ASK))[0])["type"] != "abort"


async def test_no_client_ends_a_probe(engine_case: EngineCase) -> None:
    engine = engine_case.engine
    probing = asyncio.create_task(engine.unseen.probe())
    while not probing.done():
        assert await engine.answers.abort_asked(None) == 0
        await asyncio.sleep(0.001)
    await probing


async def test_a_flush_forgets_what_nobody_uses_and_disturbs_nothing_under_way(
    engine_case: EngineCase,
) -> None:
    engine = engine_case.engine
    (before,) = await answers(engine, ASK)
    flushed = await engine.switch.flush()
    assert flushed > 0 or engine.switch.cannot_overlap is not None
    assert await engine.switch.flush() == 0
    async with aclosing(engine.answers.generate(await engine.answers.prepare(ENDLESS))) as items:
        first: Any = await anext(items)
        await engine.switch.flush()
        later: Any = await anext(items)
        assert later["text"].startswith(first["text"])
    (after,) = await answers(engine, ASK)
    assert after["text"] == before["text"]


async def test_it_lends_its_tokenizer(engine_case: EngineCase) -> None:
    engine = engine_case.engine
    texts = ["Who serves?", "x"]
    ids = await engine.answers.tokenize({"text": texts})
    assert await engine.answers.detokenize(ids, skip_special=True) == texts
    (chat,) = await engine.answers.tokenize(
        {"messages": [{"role": "user", "content": "Who serves?"}]}
    )
    assert len(chat) >= len(ids[0])
    with pytest.raises(BadRequest) as refused:
        await engine.answers.detokenize([[2**40]], skip_special=True)
    assert refused.value.param == "tokens"


async def test_what_its_copy_encodes_is_what_it_encodes_itself(engine_case: EngineCase) -> None:
    engine, copy = engine_case.engine, await engine_case.engine.answers.encoder_copy()
    assert engine.answers.encodes_as == (copy.name if copy else "")
    if copy is None:
        assert not isinstance(engine_case, RealCase), "a real tokenizer can be copied"
        return
    encoded = await CopiedEncoder(copy.name, copy.data).encode(BATCH)
    assert encoded is not None
    assert await engine.answers.prepare(encoded) == await engine.answers.prepare(BATCH)


@pytest.mark.usefixtures("on_one_host")
async def test_it_shows_the_first_numbers_of_a_leaf_and_of_a_tensor(
    engine_case: EngineCase,
) -> None:
    engine = engine_case.engine
    for name in (min(engine.weights.live.leaves), min(engine.weights.expected_tensors())):
        assert len(await engine.weights.first_values(name, 1)) == 1
        assert json.loads(json.dumps(shown := await engine.weights.first_values(name, 2))) == shown
    with pytest.raises(BadRequest) as refused:
        await engine.weights.first_values("no such leaf", 2)
    assert refused.value.param == "name"


async def test_answers_that_are_no_numbers_are_withheld_and_counted(
    engine_case: EngineCase,
) -> None:
    engine = engine_case.engine
    good = await engine_case.answer()
    old = await engine.switch.exchange(
        await engine.weights.stage(engine_case.overflowing_checkpoint())
    )
    await engine.unseen.probe()
    first = asyncio.create_task(engine.answers.wait_for_withheld(beyond=0))
    assert ended((await answers(engine, ASK))[0])["type"] != "abort"
    assert not first.done()
    for _ in range(2):
        with pytest.raises(AnswerNonfinite):
            await answers(engine, ASK | {"text": f"Who{OVERFLOWS_ON}serves?"})
    assert await first >= 1
    assert await engine.answers.wait_for_withheld(beyond=1) == 2
    bad = await engine.switch.exchange(old)
    await engine.switch.scrub()
    assert await engine_case.answer() == good
    await engine.weights.release(bad)


# --- two sets that answer side by side -------------------------------------------------------


@pytest.fixture
def overlapping(engine_case: EngineCase) -> EngineCase:
    """An engine in which two sets of weights answer side by side."""
    if (why := engine_case.engine.switch.cannot_overlap) is not None:
        pytest.skip(f"it cannot overlap: {why}")
    return engine_case


async def answered_by(engine: RunningEngine, weights: Staged | None) -> str:
    """The whole text of an answer that these weights make."""
    async with aclosing(
        engine.answers.generate(await engine.answers.prepare(ASK), weights)
    ) as items:
        answer: Any = await anext(items)
    return str(answer["text"])


async def test_it_says_whether_two_sets_can_answer_side_by_side_and_why_not(
    engine_case: EngineCase,
) -> None:
    engine = engine_case.engine
    why_not = engine.switch.cannot_overlap
    assert why_not is None or why_not
    assert why_not or not engine.weights.spares_wait_on_host


async def test_after_a_flip_who_comes_is_answered_by_the_new_weights(
    overlapping: EngineCase,
) -> None:
    engine, before = overlapping.engine, await overlapping.held()
    answer = await overlapping.answer()
    staged = await engine.weights.stage(overlapping.checkpoint(2))
    was_live = engine.weights.live
    old = await engine.switch.flip(staged)
    assert old is was_live
    assert engine.weights.live is staged
    assert await engine.weights.checksums() == staged.leaves
    assert await overlapping.answer() == await overlapping.fresh_answer(2) != answer
    await engine.switch.retire(old)
    assert await engine.switch.flip(old) is staged
    await engine.switch.retire(staged)
    await engine.weights.release(staged)
    assert await overlapping.answer() == answer
    assert await overlapping.held() == before


async def test_what_began_before_a_flip_ends_under_the_weights_it_began_under(
    overlapping: EngineCase,
) -> None:
    engine = overlapping.engine
    (whole,) = await answers(engine, ASK)
    staged = await engine.weights.stage(overlapping.checkpoint(2))
    async with aclosing(
        engine.answers.generate(await engine.answers.prepare(ASK | STREAM), engine.weights.live)
    ) as items:
        await anext(items)
        old = await engine.switch.flip(staged)
        new = await answered_by(engine, staged)
        last = (await rest_of(items))[-1]
    assert last["text"] == whole["text"] != new
    assert ended(last)["type"] == ended(whole)["type"]
    await back_to(engine, old)


async def back_to(engine: RunningEngine, old: Staged) -> None:
    """As it was before a flip, with nothing left of the weights that were live since."""
    new = await engine.switch.flip(old)
    await engine.switch.retire(new)
    await engine.weights.release(new)


async def test_the_lease_says_which_weights_answer_and_not_the_moment(
    overlapping: EngineCase,
) -> None:
    engine = overlapping.engine
    before = await answered_by(engine, None)
    old = await engine.switch.flip(await engine.weights.stage(overlapping.checkpoint(2)))
    assert await answered_by(engine, old) == before
    assert (
        await answered_by(engine, engine.weights.live) == await answered_by(engine, None) != before
    )
    await back_to(engine, old)


async def test_weights_are_retired_when_nothing_is_under_way_under_them(
    overlapping: EngineCase,
) -> None:
    engine = overlapping.engine
    under_old = engine.answers.generate(await engine.answers.prepare(ENDLESS), engine.weights.live)
    await anext(under_old)
    old = await engine.switch.flip(await engine.weights.stage(overlapping.checkpoint(2)))
    retiring = asyncio.create_task(engine.switch.retire(old))
    await answered_by(engine, engine.weights.live)
    assert not retiring.done()
    await under_old.aclose()
    await retiring
    await back_to(engine, old)


@pytest.mark.usefixtures("on_one_host")
async def test_retired_weights_can_be_stowed_and_go_live_again_in_either_way(
    overlapping: EngineCase,
) -> None:
    engine, answer = overlapping.engine, await overlapping.answer()
    old = await engine.switch.flip(await engine.weights.stage(overlapping.checkpoint(2)))
    await engine.switch.retire(old)
    new = await engine.switch.flip(await engine.weights.unstow(await engine.weights.stow(old)))
    assert await overlapping.answer() == answer
    await engine.switch.retire(new)
    old = await engine.switch.exchange(new)
    assert await overlapping.answer() == await overlapping.fresh_answer(2)
    await engine.weights.release(await engine.switch.exchange(old))
    assert await overlapping.answer() == answer


async def test_a_flip_back_finds_the_old_weights_still_answering(overlapping: EngineCase) -> None:
    engine = overlapping.engine
    (whole,) = await answers(engine, ASK)
    first = engine.weights.live
    async with aclosing(
        engine.answers.generate(await engine.answers.prepare(ASK | STREAM), first)
    ) as items:
        await anext(items)
        assert (
            await engine.switch.flip(await engine.weights.stage(overlapping.checkpoint(2))) is first
        )
        new = await engine.switch.flip(first)
        assert engine.weights.live is first
        assert await answered_by(engine, None) == whole["text"]
        assert (await rest_of(items))[-1]["text"] == whole["text"]
    await engine.switch.retire(new)
    await engine.weights.release(new)


async def test_an_abort_of_old_weights_ends_what_is_under_way_under_them_alone(
    overlapping: EngineCase,
) -> None:
    engine = overlapping.engine
    under_old = engine.answers.generate(await engine.answers.prepare(ENDLESS), engine.weights.live)
    await anext(under_old)
    old = await engine.switch.flip(await engine.weights.stage(overlapping.checkpoint(2)))
    async with aclosing(
        engine.answers.generate(await engine.answers.prepare(ENDLESS), engine.weights.live)
    ) as under_new:
        await anext(under_new)
        await engine.answers.abort(old)
        last = (await rest_of(under_old))[-1]
        assert (ended(last)["type"], ended(last)["code"]) == ("abort", "swap")
        assert overlapping.busy_with() == 1
    await engine.switch.retire(old)
    await back_to(engine, old)


async def test_bad_weights_are_found_out_before_anybody_is_answered_by_them(
    overlapping: EngineCase,
) -> None:
    engine, before = overlapping.engine, await overlapping.held()
    answer, was_live = await overlapping.answer(), engine.weights.live
    bad = await engine.weights.stage(overlapping.bad_checkpoint())
    for _ in range(2):
        with pytest.raises(ProbeFailed):
            await engine.unseen.prove(bad)
        assert await overlapping.answer() == answer
    await engine.weights.release(bad)
    good = await engine.weights.stage(overlapping.checkpoint(2))
    await engine.unseen.prove(good)
    assert engine.weights.live is was_live
    await engine.weights.release(good)
    assert await overlapping.answer() == answer
    assert await overlapping.held() == before


async def test_weights_are_asked_unseen_and_led_along_answers(overlapping: EngineCase) -> None:
    engine, before = overlapping.engine, await overlapping.held()
    if engine.unseen.cannot_compare is not None:
        pytest.skip("its weights are not compared")
    answer, staged = (
        await overlapping.answer(),
        await engine.weights.stage(overlapping.checkpoint(2)),
    )
    asked = Question("Who serves?", 8)
    (live,) = await engine.unseen.ask(engine.weights.live, [asked])
    (new,) = await engine.unseen.ask(staged, [asked])
    assert live.tokens != new.tokens
    led = Led(asked.prompt, asked.tokens, answer=live.tokens)
    along, again = await engine.unseen.ask(staged, [led, asked])
    (own,) = await engine.unseen.ask(engine.weights.live, [led])
    assert again == new
    assert along.tokens == own.tokens == live.tokens
    assert len(along.expected) == len(live.tokens)
    both = zip(live.tokens, new.tokens, strict=False)
    differ = next(at for at, (one, other) in enumerate(both) if one != other)
    assert along.expected[differ].token < own.expected[differ].token
    given = (live.tokens * HEARD_ANSWER)[:HEARD_ANSWER]
    led = Led(asked.prompt, HEARD_ANSWER, answer=given)
    (heard,) = await engine.unseen.ask(staged, [led])
    assert len(heard.expected) == len(heard.tokens) == HEARD_ANSWER
    await engine.weights.release(staged)
    assert await overlapping.answer() == answer
    assert await overlapping.held() == before


async def test_weights_that_others_took_the_place_of_are_asked_as_long_as_they_are_held(
    overlapping: EngineCase,
) -> None:
    """So a comparison by which nothing decides keeps no checkpoint from going live."""
    engine = overlapping.engine
    if engine.unseen.cannot_compare is not None:
        pytest.skip("its weights are not compared")
    asked, staged = (
        Question("Who serves?", 8),
        await engine.weights.stage(overlapping.checkpoint(2)),
    )
    (new,) = await engine.unseen.ask(staged, [asked])
    (was,) = await engine.unseen.ask(engine.weights.live, [asked])
    old = await engine.switch.flip(staged)
    assert await engine.unseen.ask(old, [asked]) == [was]
    assert await engine.unseen.ask(engine.weights.live, [asked]) == [new]
    assert await engine.switch.flip(old) is staged
    await engine.switch.retire(staged)
    assert await engine.unseen.ask(staged, [asked]) == [new]
    await engine.weights.release(staged)


async def test_weights_are_compared_by_more_questions_than_go_together(
    overlapping: EngineCase,
) -> None:
    """Some of them are long, and nobody waits for the compiling of anything."""
    engine, before = overlapping.engine, await overlapping.held()
    if engine.unseen.cannot_compare is not None:
        pytest.skip("its weights are not compared")
    staged = await engine.weights.stage(overlapping.checkpoint(2))
    engine.count_anew()
    found = await compare_both(
        BothWeights(engine, engine.weights.live, staged), KnownAnswers(), CORPUS
    )
    assert engine.recompiles == 0
    assert found is not None
    assert found.questions == 22
    assert found.noise_kl == pytest.approx(0, abs=1e-3)
    right = found.right_answers
    assert right is not None
    assert (right.expected, right.live_right, right.right) == (14, 12, 4)
    assert (right.better, right.worse, right.p_worse) == (2, 10, 79 / 4096)
    await engine.weights.release(staged)
    assert await overlapping.held() == before


async def test_prompts_that_could_be_asked_unseen_are_told_by_their_ids(
    engine_case: EngineCase,
) -> None:
    engine, texts = engine_case.engine, ["Who serves?", "x"]
    asked = engine.unseen.askable(await engine.answers.prepare({"text": texts}))
    ids = await engine.answers.tokenize({"text": texts})
    assert [list(each) for each in asked.values()] == [ids[at] for at in asked]


async def test_questions_it_cannot_be_asked_are_named(engine_case: EngineCase) -> None:
    engine = engine_case.engine
    await engine.unseen.check_questions(CORPUS)
    if engine.unseen.cannot_compare is None:
        asked = [*CORPUS, Question("too long " * 4000, 2, place="prompts.jsonl: line 3")]
        with pytest.raises(ConfigError, match=r"prompts\.jsonl: line 3: "):
            await engine.unseen.check_questions(asked)


async def test_a_candidate_answers_who_is_handed_it_beside_the_live_weights_and_no_client(
    overlapping: EngineCase,
) -> None:
    """More of them ask than it answers at a time; none waits for others to come."""
    engine, before = overlapping.engine, await overlapping.held()
    staged = await engine.weights.stage(overlapping.checkpoint(2))
    if isinstance(engine, EngineOverRanks):
        with pytest.raises(CheckpointIncompatible):
            engine.unseen.as_candidate(staged)
        await engine.weights.release(staged)
        return
    answer, live = await overlapping.answer(), await answered_by(engine, None)
    async with engine.unseen.as_candidate(staged):
        said = await answered_by(engine, staged)
        both = [answered_by(engine, each) for each in (staged, None) * 20]
        assert await asyncio.gather(*both) == [said, live] * 20
        assert said != live
        assert await overlapping.answer() == answer
    await engine.unseen.prove(staged)
    await engine.switch.flip(await engine.switch.flip(staged))
    await engine.switch.retire(staged)
    await engine.weights.release(staged)
    assert await overlapping.answer() == answer
    assert await overlapping.held() == before


async def test_what_a_candidate_has_under_way_is_none_of_clients_and_ends_with_it(
    overlapping: EngineCase,
) -> None:
    engine, before = overlapping.engine, await overlapping.held()
    if isinstance(engine, EngineOverRanks):
        pytest.skip("an engine over several hosts has no candidates")
    answer = await overlapping.answer()
    staged = await engine.weights.stage(overlapping.overflowing_checkpoint())
    async with AsyncExitStack() as inside:
        async with engine.unseen.as_candidate(staged):
            endless = engine.answers.generate(await engine.answers.prepare(ENDLESS), staged)
            items = await inside.enter_async_context(aclosing(endless))
            first: Any = await anext(items)
            of_clients = await engine.answers.abort_asked(None)
            await engine.answers.abort()
            going = asyncio.create_task(rest_of(items))
        *_, last = await going
    assert of_clients == 0
    assert len(last["text"]) >= len(first["text"])
    assert ended(last)["type"] == "abort"
    engine.count_anew()
    counted = asyncio.create_task(engine.answers.wait_for_withheld(0))
    async with engine.unseen.as_candidate(staged):
        overflows = ASK | {"text": f"How much {OVERFLOWS_ON} is it?"}
        with pytest.raises(AnswerNonfinite):
            await answers_of(engine, overflows, staged)
        assert await overlapping.answer() == answer
    await engine.weights.release(staged)
    assert await overlapping.held() == before
    assert not counted.done()
    counted.cancel()


async def answers_of(engine: RunningEngine, request: dict[str, Any], weights: Staged) -> list[Any]:
    async with aclosing(
        engine.answers.generate(await engine.answers.prepare(request), weights)
    ) as items:
        return await rest_of(items)


async def test_a_cancelled_proof_leaves_nothing(overlapping: EngineCase) -> None:
    engine, before = overlapping.engine, await overlapping.held()
    answer = await overlapping.answer()
    staged = await engine.weights.stage(overlapping.checkpoint(2))
    proving = asyncio.create_task(engine.unseen.prove(staged))
    await asyncio.sleep(0)
    proving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await proving
    await engine.unseen.prove(staged)
    await engine.weights.release(staged)
    assert await overlapping.answer() == answer
    assert await overlapping.held() == before


async def test_many_flips_hold_no_more_than_one_set(overlapping: EngineCase) -> None:
    engine, before, answer = (
        overlapping.engine,
        await overlapping.held(),
        await overlapping.answer(),
    )
    checkpoints = [overlapping.checkpoint(2), overlapping.checkpoint(1)]
    for flip in range(SWAPS):
        staged = await engine.weights.stage(checkpoints[flip % 2])
        await engine.unseen.prove(staged)
        old = await engine.switch.flip(staged)
        await engine.switch.retire(old)
        await engine.weights.release(old)
    assert await overlapping.answer() == answer
    assert await overlapping.held() == before


# --- copies of another engine's weights ------------------------------------------------------


async def answer_of(engine: RunningEngine) -> str:
    (answer,) = await answers(engine, ASK)
    return str(answer["text"])


@pytest.mark.usefixtures("on_one_host")
async def test_twins_hold_the_same_weights_and_one_can_have_what_the_other_staged(
    engine_case: EngineCase,
) -> None:
    before = await engine_case.held()
    async with engine_case.twin() as engine:
        other = engine_case.engine
        began = await answer_of(engine)
        assert (engine.weights.live.revision, engine.weights.live.leaves) == (
            other.weights.live.revision,
            other.weights.live.leaves,
        )
        assert await engine.weights.checksums() == await other.weights.checksums()
        assert await engine.answers.encoder_copy() == await other.answers.encoder_copy()
        assert began == await answer_of(other)
        compiled = engine.recompiles
        staged = await other.weights.stage(engine_case.checkpoint(2))
        copy = await engine.weights.twin(staged)
        assert (copy.revision, copy.fingerprint) == (staged.revision, staged.fingerprint)
        assert copy.leaves == staged.leaves
        assert await answer_of(engine) == began
        old, was_live = await engine.switch.exchange(copy), await other.switch.exchange(staged)
        assert await engine.weights.checksums() == copy.leaves
        assert await answer_of(engine) == await answer_of(other) != began
        await engine.weights.release(old)
        again = await engine.weights.twin(was_live)
        await other.weights.release(await other.switch.exchange(was_live))
        await engine.weights.release(await engine.switch.exchange(again))
        assert await answer_of(engine) == began
        assert engine.recompiles == compiled
        await check_a_copy_that_comes_to_nothing(engine_case, engine)
    assert await engine_case.held() == before


async def check_a_copy_that_comes_to_nothing(case: EngineCase, engine: RunningEngine) -> None:
    """Neither one that is given up nor one of released weights leaves anything."""
    answer, before = await answer_of(engine), await case.held()
    staged = await case.engine.weights.stage(case.checkpoint(2))
    copying = asyncio.create_task(engine.weights.twin(staged))
    await asyncio.sleep(0)
    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copying
    copying = asyncio.create_task(engine.weights.twin(staged))
    await asyncio.sleep(0)
    await case.engine.weights.release(staged)  # what is copied already goes on
    await engine.weights.release(await copying)
    with pytest.raises(TryAgain):
        await engine.weights.twin(staged)
    assert await answer_of(engine) == answer
    assert await case.held() == before


# --- what it is ------------------------------------------------------------------------------


async def test_checksums_are_those_of_the_weights_that_are_live(engine_case: EngineCase) -> None:
    engine = engine_case.engine
    before = engine.weights.live
    assert await engine.weights.checksums() == before.leaves
    staged = await engine.weights.stage(engine_case.checkpoint(2))
    assert engine.weights.live is before
    assert await engine.switch.exchange(staged) is before
    assert engine.weights.live is staged
    assert await engine.weights.checksums() == staged.leaves != before.leaves
    await engine.weights.release(await engine.switch.exchange(before))


async def test_it_names_the_tensors_that_a_checkpoint_has(engine_case: EngineCase) -> None:
    has, needs = engine_case.checkpoint(1).tensors, engine_case.engine.weights.expected_tensors()
    assert needs
    for name, need in needs.items():
        assert need.dtype == has[name].dtype
        assert need.shape in (None, has[name].shape)


async def test_it_says_what_it_is_as_plain_json(engine_case: EngineCase) -> None:
    facts = dict(engine_case.engine.facts())
    assert {"device", "engine_version"} <= facts.keys()
    assert json.loads(json.dumps(facts)) == facts


async def test_it_says_what_is_missing_for_one_more_set_and_what_those_there_take(
    engine_case: EngineCase,
) -> None:
    engine = engine_case.engine
    assert [
        await engine.weights.lacks_room(each) for each in (None, engine_case.checkpoint(2))
    ] == [None] * 2
    whole, again = engine.weights.held_bytes([engine.weights.live, engine.weights.live])
    assert whole == engine.weights.live.bytes
    assert again == 0


async def test_it_says_how_much_it_takes_at_a_time(engine_case: EngineCase) -> None:
    limits = engine_case.engine.answers.limits
    assert limits.at_once > 1
    assert 0 < limits.input_tokens < limits.total_tokens


async def test_it_turns_and_compiles_nothing_for_what_it_was_asked_before(
    engine_case: EngineCase,
) -> None:
    engine = engine_case.engine
    await engine_case.answer()
    compiled = engine.recompiles
    await engine_case.answer()
    assert engine.recompiles == compiled
    assert await asyncio.to_thread(lambda: engine.recompiles) == compiled
    assert engine.is_turning(60.0)


async def test_it_tells_how_busy_it_is_with_requests(engine_case: EngineCase) -> None:
    engine = engine_case.engine
    async with aclosing(
        engine.answers.generate(await engine.answers.prepare(ENDLESS))
    ) as answering:
        await anext(answering)
        await turn_until(lambda: engine.load.running == 1, pause=0.02)
        assert engine.load.kv_requests > 0
    # What a step that was begun ahead of the end holds comes back with its result.
    await turn_until(lambda: engine.load.running + engine.load.kv_requests == 0, pause=0.02)
    at_rest = await asyncio.to_thread(lambda: engine.load)
    assert at_rest.waiting == 0
    assert at_rest.kv_free > 0


async def test_a_death_is_told_to_everybody_and_it_can_be_closed_all_the_same(
    engine_case: EngineCase,
) -> None:
    async with engine_case.another() as engine:
        died = asyncio.create_task(engine.wait_until_dead())
        prepared = await engine.answers.prepare(ENDLESS)
        items = engine.answers.generate(prepared)
        await anext(items)
        assert not died.done()
        engine_case.kill(engine)
        with pytest.raises(EngineLost):
            await died
        with pytest.raises(EngineLost):
            await rest_of(items)
        with pytest.raises(EngineLost):
            await engine.answers.prepare(ASK)
        with pytest.raises(EngineLost):
            await anext(engine.answers.generate(prepared))
        await engine.close()
        await engine.close()


async def test_the_end_of_what_was_closed_is_no_death(engine_case: EngineCase) -> None:
    async with engine_case.another() as engine:
        died = asyncio.create_task(engine.wait_until_dead())
        await engine.close()
        engine_case.kill(engine)
        await asyncio.sleep(0)
        assert not died.done()
        died.cancel()
        with suppress(asyncio.CancelledError):
            await died
