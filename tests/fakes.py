"""Fakes for the ports: an engine, a source. They pass the contract tests of the real things.

A fault is put before a step by name: an exception is raised there, HANG waits for ever.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from typing import Any, NoReturn, Self
from zlib import crc32

from hotreload.behaviour import NOTED, Answered, Expected, Led, Question, Text
from hotreload.engine.answering.encoder_copy import EncoderCopy
from hotreload.engine.answering.probe import Probe
from hotreload.engine.capabilities import BatchSize, EngineLimits
from hotreload.errors import (
    AnswerNonfinite,
    BadRequest,
    ConfigError,
    EngineLost,
    ProbeFailed,
    SourceUnavailable,
    TryAgain,
)
from hotreload.facts.listed import Listed, ListedState
from hotreload.types import (
    Checkpoint,
    EngineLoad,
    HowFar,
    LoadFacts,
    Noise,
    Revision,
    Staged,
    TensorSpec,
)
from tests.fake_answers import FakeAnswers

HANG = object()
OVERFLOWS_ON = "~"
"""Overflowing weights make no numbers of a prompt with it, and answer every other."""


@dataclass(eq=False)
class FakeWeights:
    says: str
    is_bad: bool = False
    overflows: bool = False
    is_on_device: bool = True
    is_held: bool = True

    def drop(self) -> None:
        """Free them, whatever the engine is like."""
        self.is_held = False


def unread(
    revision: Revision, path: Path = Path(), tensors: Mapping[str, TensorSpec] | None = None
) -> Checkpoint:
    """A checkpoint for what looks at its name alone."""
    return Checkpoint(revision, path, (), tensors or {}, bytes=10, held={})


END = 0
"""The token that says that an answer is over."""


def unseen_answer(says: str, question: Question) -> Answered:
    """What such weights say, letter by letter, and expect along an answer that is given."""
    own = tuple(map(ord, says))[: question.tokens]
    match question:
        case Text():
            tokens = tuple(map(ord, question.prompt[:8]))
        case Led():
            tokens = question.answer
        case _:
            tokens = own
    sure, unsure = log(0.9), log(0.05)
    expected = []
    ends = (END,) if type(question) is Question and len(says) < question.tokens else ()
    noted = (*tokens, *ends) if isinstance(question, Led) else (*tokens, *ends)[:NOTED]
    for at, token in enumerate(noted):
        would = ord(says[at]) if at < len(says) else END
        likeliest = {would: sure, would + 1: unsure}
        expected.append(Expected(likeliest.get(token, log(1e-4)), 0.4, likeliest))
    ended = "length" if len(says) > question.tokens else "stop"
    return Answered(tokens, "".join(map(chr, tokens)), ended, tuple(expected))


class Steps:
    """Records which steps were entered, and breaks those it is told to break."""

    def __init__(self) -> None:
        self.faults: dict[str, object] = {}
        self.entered: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.released: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.order: list[str] = []
        """Each step, as often as it was entered."""

    async def pass_through(self, step: str) -> None:
        self.order.append(step)
        self.entered[step].set()
        await asyncio.sleep(0)
        fault = self.faults.get(step)
        if fault is HANG:
            await self.released[step].wait()
        elif isinstance(fault, list):
            if fault:
                raise fault.pop(0)
        elif isinstance(fault, BaseException):
            raise fault


def read(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint as an engine knows it that has read it all."""
    first = checkpoint.first_read
    return checkpoint if first is None else first.read(threading.Event())


class FakeEngine(FakeAnswers):
    """Weights are a sentence; bad ones poison the cache of every later answer until a scrub."""

    def __init__(
        self, steps: Steps, live: Revision, leaves: Mapping[str, int] | None = None
    ) -> None:
        super().__init__(steps.pass_through)
        self.steps = steps
        self.live = self.set_of(live, FakeWeights(live.id), leaves)
        self.damage: dict[str, int] = {}
        """Checksums of live leaves that are no longer what went live."""
        self.recompiles = 0
        self.takes_no_part: BadRequest | None = None
        """Why it loads whole sets alone."""
        self.sets_that_fit = 9
        """How many sets its memory holds."""
        self.limits = EngineLimits(vocabulary=300, input_tokens=200, total_tokens=256, at_once=6)
        self.encoder: EncoderCopy | None = None
        """What it gives to others who are to encode prompts; only a test gives it any."""
        self.copies_made = 0
        """How often it was asked for that."""
        self.sizes: list[BatchSize] = []
        """What it says that it can compile for."""
        self.compiled: list[BatchSize] = []
        self.is_kept_to_compiled = False
        self.spares: list[Staged] = []
        self.old: list[Staged] = []
        """What answers older requests still."""
        self.cannot_overlap: str | None = None
        self.cannot_compare: str | None = "it was started without [compare] report"
        """Whether its weights can be compared: core tests say so where they are about it."""
        self.asked_unseen: list[Question] = []
        self.spares_wait_on_host = False
        self.staging_progress: HowFar | None = None
        self.loading: LoadFacts | None = None
        """How checkpoints are made here."""
        self.cache: set[str] = {"clean"}
        self.scrubs = 0
        self.aborts = 0
        self.on_abort: list[asyncio.Event] = []
        self.proofs: list[str] = []
        """What staged weights answered where nobody saw it."""
        self._withheld = 0
        self._more_withheld = asyncio.Event()
        self._death = asyncio.Event()
        self.distrust = asyncio.Event()
        self.is_closed = False
        self.judged_by: tuple[list[Probe], float | None] = ([], None)
        """What it was told last to judge later weights by."""

    @property
    def itself(self) -> Self:
        """Stands for each object that a real engine holds: a fake is all of them."""
        return self

    weights = switch = unseen = answers = ahead = itself

    def sizes_to_compile(self, most: int, longest: int) -> Sequence[BatchSize]:
        return [each for each in self.sizes if most and each.tokens <= longest]

    def keep_to_compiled(self, is_kept: bool) -> None:
        self.is_kept_to_compiled = is_kept

    async def compile_for(self, size: BatchSize) -> None:
        await self.steps.pass_through("compile")
        self.compiled.append(size)

    @property
    def encodes_as(self) -> str:
        return self.encoder.name if self.encoder else ""

    async def encoder_copy(self) -> EncoderCopy | None:
        self.copies_made += 1
        return self.encoder

    def count_anew(self) -> None:
        self.recompiles = self._withheld = 0

    @property
    def load(self) -> EngineLoad:
        return EngineLoad(running=self.running, kv_requests=self.running, kv_free=9 - self.running)

    @property
    def sets_held(self) -> int:
        return len(self.weights_held)

    @property
    def weights_held(self) -> list[FakeWeights]:
        return [each.weights for each in (self.live, *self.old, *self.spares)]

    @property
    def sets_on_device(self) -> int:
        return sum(weights.is_on_device for weights in self.weights_held)

    def judge_by(self, probes: Sequence[Probe], max_drift: float | None) -> None:
        if any("too long" in probe.prompt for probe in probes):
            raise ConfigError("[[probe]]: one is too long")
        self.judged_by = (list(probes), max_drift)

    async def check_questions(self, questions: Sequence[Question]) -> None:
        for each in questions:
            if self.cannot_compare is None and "too long" in each.prompt:
                raise ConfigError(f"{each.place}: is too long")

    async def stage(self, checkpoint: Checkpoint) -> Staged:
        self.staging_progress = HowFar(0, checkpoint.bytes)
        try:
            await self.steps.pass_through("stage")
            staged = await self.loaded(read(checkpoint))
        finally:
            self.staging_progress = None
        return self._spare(staged)

    async def loaded(self, checkpoint: Checkpoint) -> Staged:
        """What a checkpoint is made of: here its name decides what it says."""
        revision = checkpoint.revision
        weights = FakeWeights(revision.id, "bad" in revision.label, "overflow" in revision.label)
        return replace(self.set_of(revision, weights), loading=self.loading)

    async def check_takes(self, checkpoint: Checkpoint) -> None:
        if self.takes_no_part is not None:
            raise self.takes_no_part

    def live_sums(self) -> Mapping[str, int]:
        return self.live.leaves

    async def lacks_room(self, checkpoint: Checkpoint | None) -> str | None:
        await self.steps.pass_through("lacks_room")
        return None if self.sets_on_device < self.sets_that_fit else "the device is full"

    def held_bytes(self, sets: Sequence[Staged]) -> list[int]:
        seen: list[FakeWeights] = []
        taken = []
        for each in sets:
            taken.append(0 if each.weights in seen else each.bytes)
            seen.append(each.weights)
        return taken

    async def twin(self, staged: Staged) -> Staged:
        original = replace(staged.weights)
        if not original.is_held:
            raise TryAgain(f"{staged.revision} was released")
        await self.steps.pass_through("twin")
        return self._spare(self.set_of(staged.revision, original, staged.leaves))

    async def perturb(self, revision: Revision, noise: Noise) -> Staged:
        await self.steps.pass_through("perturb")
        live, is_loud = self.live.weights, noise.scale >= 1
        says = f"{live.says} with {noise}"
        return self._spare(self.set_of(revision, FakeWeights(says, live.is_bad or is_loud)))

    def _spare(self, staged: Staged) -> Staged:
        staged.weights.is_on_device = not self.spares_wait_on_host
        self.spares.append(staged)
        return staged

    async def exchange(self, staged: Staged) -> Staged:
        await self.steps.pass_through("exchange")
        assert staged in self.spares, "only spare weights can be made live"
        is_there = staged.weights.is_on_device is not self.spares_wait_on_host
        assert is_there, "weights go live from where spare ones wait"
        assert not self.old, "weights are exchanged only while no others answer"
        self.spares.remove(staged)
        old, self.live = self.live, staged
        staged.weights.is_on_device = True
        return self._spare(old)

    async def prove(self, staged: Staged) -> None:
        await self.steps.pass_through("prove")
        assert staged in self.spares, "what answers is not proven any more"
        answer = self.said(staged, {"nonsense"} if staged.weights.is_bad else {"clean"})
        self.proofs.append(answer)
        await self.judge(answer)

    async def ask(self, staged: Staged, questions: Sequence[Question]) -> Sequence[Answered]:
        await self.steps.pass_through("compare")
        held = (self.live, *self.spares, *self.old)
        assert any(staged is each for each in held), "what is gone answers nothing"
        if staged.weights.overflows or any("overflow" in each.prompt for each in questions):
            raise AnswerNonfinite("no numbers")
        self.asked_unseen += questions
        return [unseen_answer(staged.weights.says, each) for each in questions]

    @asynccontextmanager
    async def as_candidate(self, staged: Staged) -> AsyncIterator[None]:
        await self.steps.pass_through("candidate")
        assert staged in self.spares, "what answers clients is no candidate"
        self.candidate = staged
        try:
            yield
        finally:
            self.candidate = None
            self.end_all(staged)
            await self.nothing_under(staged)

    async def flip(self, staged: Staged) -> Staged:
        await self.steps.pass_through("flip")
        assert staged.weights.is_on_device, "stowed weights must be unstowed first"
        (self.old if staged in self.old else self.spares).remove(staged)
        old, self.live = self.live, staged
        self.old.append(old)
        return old

    async def retire(self, staged: Staged) -> None:
        await self.steps.pass_through("retire")
        assert staged in self.old, "only weights that were flipped away from are retired"
        await self.nothing_under(staged)
        self.old.remove(staged)
        self.spares.append(staged)

    async def scrub(self) -> None:
        await self.steps.pass_through("scrub")
        self.scrubs += 1
        self.cache = {"clean"}

    async def probe(self, *, briefly: bool = False) -> None:
        if briefly:
            await self.steps.pass_through("probe briefly")
            self.answer()
            return
        await self.steps.pass_through("probe")
        await self.judge(self.answer())

    async def judge(self, answer: str) -> None:
        """Raise ProbeFailed for an answer that is no good."""
        if "nonsense" in answer:
            raise ProbeFailed(f"the probe got {answer!r}")

    async def abort(self, staged: Staged | None = None) -> None:
        await self.steps.pass_through("abort")
        self.aborts += 1
        if staged is None:
            self.end_clients()
        else:
            self.end_all(staged)
        for leave in self.on_abort:
            leave.set()

    def withhold(self) -> None:
        """As if a client's prompt had overflowed: every answer is spoiled until a scrub."""
        self.cache.add("nonsense")
        self._withheld += 1
        self._more_withheld.set()

    async def wait_for_withheld(self, beyond: int) -> int:
        while self._withheld <= beyond:
            self._more_withheld.clear()
            await self._more_withheld.wait()
        return self._withheld

    async def stow(self, staged: Staged) -> Staged:
        await self.steps.pass_through("stow")
        staged.weights.is_on_device = False
        return staged

    async def unstow(self, staged: Staged) -> Staged:
        await self.steps.pass_through("unstow")
        staged.weights.is_on_device = not self.spares_wait_on_host
        return staged

    async def release(self, staged: Staged) -> None:
        await self.steps.pass_through("release")
        self.spares.remove(staged)
        staged.weights.is_held = False

    async def checksums(self) -> dict[str, int]:
        await self.steps.pass_through("checksums")
        return {**self.live.leaves, **self.damage}

    async def first_values(self, name: str, most: int) -> list[Any]:
        if name not in self.live.leaves:
            raise BadRequest(f"name: there is no leaf {name}", param="name")
        return [[0.5, 0.25], [1.0, 2.0]][:most]

    def facts(self) -> Mapping[str, Any]:
        limits = {"context_length": self.limits.total_tokens, "max_running_requests": 6}
        model = {"model_type": "fake", "architectures": ["FakeForCausalLM"]}
        about = {"device": "none", "engine_version": "fake", "tp_size": 1, "load_format": "auto"}
        return {**about, **limits, **model, "max_total_tokens": 9}

    def expected_tensors(self) -> Mapping[str, TensorSpec]:
        return {"leaf": TensorSpec((1,), "BF16")}

    def is_turning(self, within: float) -> bool:
        return self._lost is None

    async def wait_for_distrust(self) -> str:
        await self.distrust.wait()
        return "ours made another leaf"

    async def wait_until_dead(self) -> NoReturn:
        await self._death.wait()
        raise lost()

    def die(self) -> None:
        """As if a thread of it had ended: nobody is answered any more."""
        self.lose(str(lost()))

    def lose(self, why: str) -> None:
        if self.is_closed or self._lost is not None:
            return
        self._lost = lost(why)
        self._death.set()
        self.end_all()

    async def close(self) -> None:
        await self.steps.pass_through("close")
        self.is_closed = True
        self.live.weights.is_held = False
        self.end_all()

    def check_answer(self, request: Mapping[str, Any], weights: Staged) -> None:
        are_clients = weights is self.live or weights in self.old
        assert are_clients or weights is self.candidate, "nobody is answered by spare weights"
        if weights.weights.overflows and OVERFLOWS_ON in str(request.get("text")):
            if are_clients:
                self.withhold()
            raise AnswerNonfinite("the weights made no numbers of this prompt")

    def answer(self, weights: Staged | None = None) -> str:
        weights = weights or self.live
        if weights.weights.is_bad:
            self.cache.add("nonsense")
        return self.said(weights, self.cache)

    def said(self, staged: Staged, cache: set[str]) -> str:
        """What these weights say with such a cache."""
        return f"{staged.weights.says} {' '.join(sorted(cache))}"

    def set_of(
        self, revision: Revision, weights: FakeWeights, leaves: Mapping[str, int] | None = None
    ) -> Staged:
        leaves = leaves or {"leaf": crc32(weights.says.encode())}
        return Staged(revision, weights, f"fp-{weights.says}", leaves, 10)


class FakeSource:
    """Wishes what the test publishes."""

    def __init__(self, steps: Steps, folder: Path) -> None:
        self.steps = steps
        self.folder = folder
        self.known: dict[str, Revision] = {}
        self._wishes: asyncio.Queue[Revision | None] = asyncio.Queue()

    def publish(self, revision: Revision) -> None:
        self.known[revision.label] = revision
        self._wishes.put_nowait(revision)

    async def follow_newest(self) -> AsyncIterator[Revision]:
        while (wish := await self._wishes.get()) is not None:
            yield wish
            self._wishes.task_done()

    async def heard(self) -> None:
        """Until whoever follows took in all that was published."""
        await self._wishes.join()

    async def fetch(self, revision: Revision) -> Path:
        await self.steps.pass_through("fetch")
        if revision not in self.known.values():
            raise SourceUnavailable(f"{revision} is not here")
        return self.folder / revision.label

    def content_of(self, revision: Revision) -> str:
        return f"content of {revision.id}"

    def wake(self, cause: str) -> None:
        """It looks all the time."""

    def list_ids(self) -> list[str]:
        return [revision.id for revision in reversed(self.known.values())]

    def list_seen(self) -> list[Listed]:
        return [
            Listed(label, ListedState.OLDER, path=str(self.folder / label)) for label in self.known
        ]

    async def close(self) -> None:
        self._wishes.put_nowait(None)

    async def resolve(self, name: str | None) -> Revision:
        for label, revision in reversed(self.known.items()):
            if name is None or Path(name).name == label:
                return revision
        raise SourceUnavailable(f"{name} is not here")


def lost(why: str = "the scheduler thread died") -> EngineLost:
    return EngineLost(why)
