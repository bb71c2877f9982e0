"""Training runs of tiny checkpoints for tests, and what their weights say of the text."""

from functools import cache
from typing import NamedTuple

import numpy as np

from hotreload.tiny.sayings import PAD_ID, TUNED_TEXT
from hotreload.tiny.trainer import BASE_STEPS, TUNED_STEPS, Network, batch, train_and_keep
from hotreload.tiny.weights import Arrays, TensorArray
from tests.tiny.conversions import Past

NEXT_STEPS = TUNED_STEPS + 4
"""A good checkpoint that comes next in the same run."""


class Run(NamedTuple):
    """One run's weights: tuned, a little later, and before."""

    tuned: Arrays
    following: Arrays
    past: Past


@cache
def run_of(arch: str) -> Run:
    """Train once in a process: some three seconds."""
    early = BASE_STEPS // 3
    found = train_and_keep(arch, {early, BASE_STEPS, TUNED_STEPS, NEXT_STEPS})
    past = Past(found[BASE_STEPS], found[early])
    return Run(found[TUNED_STEPS], found[NEXT_STEPS], past)


class Behaviour(NamedTuple):
    """How weights speak where others speak well, told as a behaviour report tells it."""

    kl: float
    """Nats a token, mean."""
    perplexity_ratio: float
    same_top: float


def likelihoods(weights: Arrays, text: dict[str, str]) -> tuple[TensorArray, TensorArray]:
    """Log-probabilities of all tokens at each place of the answers, and the tokens there."""
    ids, wanted = batch(text)
    counted = wanted != PAD_ID
    network = Network(weights)
    logits, _ = network.head(network.hidden_states(ids)[0][counted])
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True)), wanted[counted]


def behaviour(staged: Arrays, live: Arrays) -> Behaviour:
    """Compare on the text that the live weights were tuned on."""
    theirs, tokens = likelihoods(live, TUNED_TEXT)
    ours, _ = likelihoods(staged, TUNED_TEXT)
    at = np.arange(len(tokens))
    return Behaviour(
        float(np.sum(np.exp(theirs) * (theirs - ours), axis=-1).mean()),
        float(np.exp(np.mean(theirs[at, tokens] - ours[at, tokens]))),
        float(np.mean(theirs.argmax(axis=-1) == ours.argmax(axis=-1))),
    )
