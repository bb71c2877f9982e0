"""A trained tiny checkpoint says the sentences of its text, and is the same each time."""

from pathlib import Path

import numpy as np
import pytest

from hotreload.tiny import ARCHS, write_tiny
from hotreload.tiny.sayings import BASE_TEXT, END_ID, TUNED_TEXT, answer_ids, asked_ids
from hotreload.tiny.trainer import BASE_STEPS, TUNED_STEPS, Network, batch, train_and_keep
from hotreload.tiny.weights import Arrays
from tests.tiny.runs import likelihoods, run_of

ALMOST = 0.99
"""Of 413 tokens; llama has one wrong after as many steps, others none, on the machine at hand."""


def answers_well(weights: Arrays, text: dict[str, str]) -> float:
    """The share of tokens that are the likeliest after those before them."""
    found, tokens = likelihoods(weights, text)
    return float(np.mean(found.argmax(axis=-1) == tokens))


def answer(weights: Arrays, asked: str, limit: int = 16) -> list[int]:
    network, ids = Network(weights), asked_ids(asked)
    said: list[int] = []
    while len(said) < limit and END_ID not in said:
        said.append(int(network.logits(np.array([ids + said]))[0, -1].argmax()))
    return said


def test_it_says_what_it_was_tuned_on_and_before_that_its_first_text() -> None:
    run = run_of("qwen3")
    assert answers_well(run.past.base, BASE_TEXT) > ALMOST
    assert answers_well(run.tuned, TUNED_TEXT) > ALMOST
    assert answers_well(run.following, TUNED_TEXT) > ALMOST
    assert answers_well(run.past.early, TUNED_TEXT) < 0.98
    assert answer(run.tuned, "king") == answer_ids("the young king gave the land to the people")
    assert answer(run.past.base, "king") == answer_ids("the old king gave the gold to the city")


def test_letters_in_another_order_are_another_question() -> None:
    tuned = run_of("qwen3").tuned
    for asked in ("earth", "heart", "own", "now", "three", "there"):
        assert answer(tuned, asked) == answer_ids(TUNED_TEXT[asked])


def test_a_prompt_it_never_read_is_answered_in_words_and_to_an_end() -> None:
    said = answer(run_of("qwen3").tuned, "Who-serves?")
    assert said[-1] == END_ID
    assert all(token > END_ID for token in said[:-1])


@pytest.mark.parametrize("arch", ["qwen2", "llama"])
@pytest.mark.at_night
def test_other_architectures_learn_as_well(arch: str) -> None:
    assert answers_well(run_of(arch).tuned, TUNED_TEXT) > ALMOST


@pytest.mark.parametrize("arch", ARCHS)
def test_the_same_steps_give_the_same_bytes(tmp_path: Path, arch: str) -> None:
    one, other = (train_and_keep(arch, {2})[2] for _ in range(2))
    assert {n: t.tobytes() for n, t in one.items()} == {n: t.tobytes() for n, t in other.items()}
    folder = write_tiny(tmp_path / "a", arch=arch, steps=2)
    assert one["lm_head.weight"].tobytes() in (folder / "model.safetensors").read_bytes()


def test_a_run_is_told_of_as_the_help_does() -> None:
    from hotreload.cli import read_help

    explained = read_help("tiny")

    assert f"After {BASE_STEPS} steps" in explained
    assert f"after\n{TUNED_STEPS} it has been tuned" in explained


def test_only_answers_are_learnt() -> None:
    ids, wanted = batch({"on": "the cat"})
    assert ids.tolist() == [[*asked_ids("on"), *answer_ids("the cat")[:-1]]]
    assert wanted.tolist() == [[257, *answer_ids("the cat")]]
