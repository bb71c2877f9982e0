"""What the scenes of a life are made of: revisions, attempts, what observers look at."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hotreload.attempts import START, Attempt, By
from hotreload.events import (
    GateChanged,
)
from hotreload.facts.listed import Listed, ListedState
from hotreload.features.bake.evidence import Bake, BakeOutcome, SignalCount
from hotreload.features.compare.evidence import Behaviour, BothAnswers
from hotreload.features.compare.replay import HearingNow
from hotreload.types import (
    NOISY,
    AnsweringGeneration,
    GateState,
    Generation,
    LoadFacts,
    Outcome,
    Phase,
    Reason,
    Revision,
)
from tests.evidence import judged
from tests.golden.observed import Observed
from tests.observe.things import NOON, OWN

ONE, TWO, THREE, FOUR = (Revision(f"{n}" * 40, f"step_{n}") for n in (1, 2, 3, 4))
NOISE = Revision(f"{NOISY}7-0.01-3-print", "step_2 + noise")
OPEN = GateChanged(GateState.OPEN, 0, 0)
NAN = Reason("nonfinite", "tensor 'lm_head' holds NaN", ("lm_head: 3 NaN", "norm: 1 NaN"))
BUSY = Reason("drain", "2 requests still run after 30 s")
ROOM = Reason("oom", "another set of weights needs 3.1 GB, and 1.0 GB is free")
NEWER = Reason("superseded", "step_4 is wanted")
PROBE = Reason("probe", "the answer 'x x x' does not hold 'Paris'", ("x" * 80,))
DIED = "the scheduler thread died"
SPENT = {Phase.FETCHING: 0.5, Phase.VALIDATING: 0.25, Phase.STAGING: 1.25}
PROVEN = {**SPENT, Phase.PROBING: 0.3, Phase.SWAPPING: 0.003}
USUAL = (Phase.FETCHING, Phase.VALIDATING, Phase.STAGING, Phase.PROBING, Phase.SWAPPING)


def by(verb: str, reason: str = "") -> By:
    """Root, who has that name on every machine."""
    return By(verb, 0, 77, NOON, reason)


def made(number: int, revision: Revision, **leaves: int) -> Generation:
    """A generation with some leaves."""
    held = {"a": 1, "b": 2, "c": number, "d": 4, **leaves}
    return Generation(number, revision, f"print-{number}", NOON + number, held, 100)


def baked(outcome: BakeOutcome, empty: int, words: str = "") -> Bake:
    """The judgement on the second generation when so many of its answers were empty."""
    counts = SignalCount("empty", empty, 0.01, 0.2, 20, 0.007, 0.04, 0.1)
    made = Bake(outcome, NOON, NOON + 300, 120, against=1, old_answers=1000)
    return replace(made, signals=(counts,), words=words)


COMPARED = Behaviour(
    *(6, 90, 0.75, 1.0, 3, 1.25, 0, 1, 0, 0, 0, 0),
    mean_kl=0.25,
    noise_kl=0.0,
    worst=(BothAnswers("?", "served by step 1", "served by step 2", "agreement: 3 of 4"),),
    seconds=1.5,
    heard=20,
    heard_tokens=512,
    heard_same_top=0.9,
)
"""Differences of the second generation from the first."""


def baking(observed: Observed) -> None:
    """Clients' answers judge what is live, and are heard."""
    observed.bake = baked(BakeOutcome.BAKING, 3)
    observed.hearing = HearingNow(0.05, 100, 20, 3)


def ended(revision: Revision, outcome: Outcome, why: Reason | None = None, **more: Any) -> Attempt:
    """An attempt that ended so."""
    whole = judged(Attempt(revision, outcome, why, SPENT, 0.0, NOON + 30))
    return replace(whole, **more)


def live(number: int, revision: Revision, loading: LoadFacts | None = OWN, **more: Any) -> Attempt:
    """An attempt that went live."""
    made = ended(revision, Outcome.LIVE, phases=PROVEN, loading=loading, generation=number)
    return replace(made, **more)


FIRST, SECOND, THIRD, NOISE_LIVE = (
    made(number, revision) for number, revision in ((1, ONE), (2, TWO), (3, ONE), (4, NOISE))
)
BOOT_PHASES = {Phase.BUILDING: 90.0, Phase.WARMING: 20.0, Phase.PROBING: 2.5, **SPENT}
STARTED = live(1, ONE, None, by=by(START, "the newest checkpoint"), phases=BOOT_PHASES)


def answering(*pairs: tuple[Generation, int]) -> Callable[[Observed], None]:
    """So many requests are answered by these, in the first engine."""

    def turn(observed: Observed) -> None:
        gate = observed.gates.gates[0]
        gate.now = [AnsweringGeneration(generation, requests) for generation, requests in pairs]
        gate.inside = sum(requests for _, requests in pairs)

    return turn


def holding(observed: Observed) -> None:
    answering((SECOND, 2))(observed)
    observed.gates.gates[0].held = 5


def going_back(observed: Observed) -> None:
    """An operator has chosen another revision than the source's."""
    observed.ledger.wish(TWO)
    observed.ledger.overrule(ONE, by("rollback", "it talks too much"))
    answering((THIRD, 0))(observed)


def went(generation: Generation) -> Callable[[Observed], None]:
    """The ledger knows of it."""
    return lambda observed: observed.ledger.went_live(generation, f"/c/{generation.revision.label}")


def sees(observed: Observed) -> None:
    """The source sees folders of every standing."""
    observed.listed += [
        Listed("step_4", ListedState.WAITING, "2 of 4 shards", step=(0, 4), bytes=5),
        Listed("step_3", ListedState.NEWEST, revision=THREE, step=(1, 3), written_at=NOON),
        Listed("step_2", ListedState.OLDER, revision=TWO, bytes=3 * 2**30),
        Listed("step_1", ListedState.OLDER, "older than step_3", revision=ONE, path="/c/step_1"),
        Listed("notes", ListedState.ODD, "holds no *.safetensors", "missing"),
    ]


def counts(observed: Observed) -> None:
    observed.metrics.request_finished("/generate", 200, 0.2)
    observed.metrics.request_finished("/nothing", 404, 0.001)
    observed.metrics.first_token(0.03)
    observed.metrics.tokens(12)
