"""Tiny weights asked what every checkpoint is asked, by numpy in an engine's place."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from hotreload.behaviour import LEAD, Answered, Expected, Led, Question, Text
from hotreload.engine.lanes.along import LEAST, NAMED
from hotreload.features.compare.comparison import BothWeights, KnownAnswers, compare_both
from hotreload.features.compare.evidence import Behaviour
from hotreload.tiny.sayings import END_ID, PAD_ID, tokenizer_files
from hotreload.tiny.trainer import Network
from hotreload.tiny.weights import Arrays, TensorArray
from hotreload.types import Revision, Staged


async def report_on(new: Arrays, live: Arrays) -> Behaviour:
    """The report of a reload, on weights that no engine holds."""
    engine: Any = NumpyEngine(live)  # it is asked nothing else
    found = await compare_both(BothWeights(engine, engine.live, staged(new)), KnownAnswers())
    assert found is not None
    return found


def staged(weights: Arrays) -> Staged:
    return Staged(Revision("tiny"), weights, "", {}, 0)


class NumpyEngine:
    """As much of an engine as a comparison asks."""

    def __init__(self, live: Arrays) -> None:
        self.live = staged(live)
        self.unseen = self

    async def ask(self, staged: Staged, questions: Sequence[Question]) -> Sequence[Answered]:
        """In two batches: answers token by token, and places of what is given in one pass."""
        network = Network(staged.weights)
        free = [each for each in questions if not _given(each)]
        led = [each for each in questions if _given(each)]
        answered = {
            **dict(zip(map(id, free), _answers(network, free), strict=True)),
            **dict(zip(map(id, led), _along(network, led), strict=True)),
        }
        return [answered[id(each)] for each in questions]


def _given(question: Question) -> list[int]:
    """The tokens that weights are led along."""
    if isinstance(question, Led):
        return list(question.answer)
    return _ids(question.prompt)[LEAD:][: question.tokens] if isinstance(question, Text) else []


def _asked(question: Question) -> list[int]:
    ids = _ids(question.prompt)
    return ids[:LEAD] if isinstance(question, Text) else ids


def _answers(network: Network, questions: Sequence[Question]) -> list[Answered]:
    """Greedily, all of them a token further at each step."""
    asked = [_asked(each) for each in questions]
    said: list[list[int]] = [[] for _ in questions]
    expected: list[list[Expected]] = [[] for _ in questions]
    while going := [row for row, each in enumerate(questions) if not _is_over(said[row], each)]:
        rows = [[*asked[row], *said[row]] for row in going]
        ends = [(at, len(ids) - 1) for at, ids in enumerate(rows)]
        for row, logs in zip(going, _logs(network, rows, ends), strict=True):
            said[row].append(int(logs.argmax()))
            expected[row].append(_expected(logs, said[row][-1]))
    pairs = zip(said, expected, strict=True)
    return [_answered(tokens, noted, "length") for tokens, noted in pairs]


def _is_over(said: list[int], question: Question) -> bool:
    return len(said) == question.tokens or said[-1:] == [END_ID]


def _along(network: Network, questions: Sequence[Question]) -> list[Answered]:
    rows = [[*_asked(each), *_given(each)] for each in questions]
    places = [
        (row, len(rows[row]) - left)
        for row, each in enumerate(questions)
        for left in range(len(_given(each)) + 1, 1, -1)
    ]
    logs = iter(_logs(network, rows, places))
    return [
        _answered(given, [_expected(next(logs), token) for token in given], "length")
        for given in map(_given, questions)
    ]


def _answered(tokens: list[int], expected: list[Expected], ended: str) -> Answered:
    if tokens[-1:] == [END_ID]:
        tokens, ended = tokens[:-1], "stop"
    return Answered(tuple(tokens), tiny_tokenizer().decode(tokens), ended, tuple(expected))


def _logs(
    network: Network, rows: Sequence[list[int]], places: Sequence[tuple[int, int]]
) -> TensorArray:
    """Log-probabilities of all tokens behind these places; what follows a row pads it."""
    if not rows:
        return np.empty((0, 0))
    ids = np.full((len(rows), max(map(len, rows))), PAD_ID)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = row
    hidden, _ = network.hidden_states(ids)
    logits, _ = network.head(hidden[tuple(np.array(places).T)])
    logits -= logits.max(axis=-1, keepdims=True)
    logs: TensorArray = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    return np.maximum(logs, LEAST)


def _expected(logs: TensorArray, token: int) -> Expected:
    likeliest = np.argsort(-logs, kind="stable")[:NAMED]
    entropy = -float(np.sum(np.exp(logs) * logs))
    named = {int(each): float(logs[each]) for each in likeliest}
    return Expected(float(logs[token]), entropy, named)


def _ids(text: str) -> list[int]:
    return list(tiny_tokenizer().encode(text).ids)


@cache
def tiny_tokenizer() -> Tokenizer:
    return Tokenizer.from_str(tokenizer_files()["tokenizer.json"].decode())
