"""Events to observe."""

from hotreload.types import Attempt, Generation, Loading, Outcome, Phase, Reason, Refusal, Revision

STEP_7 = Revision("7" * 40, "step-7")
STEP_8 = Revision("8" * 40, "step-8")
TRUNCATED = Reason("truncated", "model.safetensors ends early", ("expected 9", "got 7"))
NOON = 1_700_000_000.0  # 2023-11-14T22:13:20Z

OWN = Loading(
    "own",
    leaves_staged=12,
    leaves_shared=18,
    bytes_read=600,
    leaves_changed=12,
    largest_change=0.04,
    most_changed="layers.3.down_proj",
)
UPSTREAM = Loading("upstream", "it is fp8", leaves_staged=30, bytes_read=1000, leaves_changed=30)


def generation(number: int = 3, revision: Revision = STEP_7, **leaves: int) -> Generation:
    return Generation(number, revision, f"print-{number}", NOON, leaves or {"a": 1, "b": 2})


def went_live(number: int = 4, revision: Revision = STEP_8) -> Attempt:
    spent = {Phase.FETCHING: 0.5, Phase.STAGING: 1.25, Phase.SWAPPING: 0.003}
    return Attempt(revision, Outcome.LIVE, None, spent, 0.04, NOON, number)


def rejected(reason: Reason = TRUNCATED, *, rolled_back: bool = False) -> Attempt:
    spent = {Phase.FETCHING: 0.5, Phase.VALIDATING: 0.25}
    return Attempt(STEP_8, Outcome.REJECTED, reason, spent, 0.0, NOON + 5, rolled_back=rolled_back)


def ended(outcome: Outcome) -> Attempt:
    return Attempt(STEP_8, outcome, Reason("drain", "busy"), {}, 0.0, NOON)


def refusal(revision: Revision = STEP_8, at: float = NOON) -> Refusal:
    return Refusal(revision, TRUNCATED, at)
