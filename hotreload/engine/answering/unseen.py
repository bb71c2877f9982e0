"""Questions that weights are asked apart from clients: how they are asked, and their answers."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hotreload.behaviour import (
    LEAD,
    NOTED,
    Answered,
    Expected,
    Led,
    Question,
    Text,
    questions,
    texts,
)
from hotreload.engine.answering.answers import Answer
from hotreload.engine.answering.items import Item, Parsed
from hotreload.engine.answering.prompts import Prompts
from hotreload.engine.lanes.along import Along
from hotreload.engine.lanes.pool_shares import SHADOW_ROWS
from hotreload.errors import AnswerNonfinite, BadRequest, ConfigError

MOST_TOKENS = 8192
"""The most tokens of questions that are asked together, unless one alone takes more: their pool
takes memory beside the weights that are compared."""


FindRoom = Callable[[Sequence[int]], bool]
"""Says if prompts that take so many tokens with their answers find room together."""


@dataclass(frozen=True, slots=True)
class UnseenItem:
    """A question as the engine is asked it."""

    item: Item
    given: tuple[int, ...]
    """The tokens that it is led along."""

    @property
    def needs(self) -> int:
        """The tokens that it takes with its answer."""
        return len(self.item.input_ids) + int(self.item.sampling_params["max_new_tokens"])


class UnseenBatch:
    """Questions that are asked together."""

    def __init__(self, asked: Sequence[UnseenItem]) -> None:
        self._items = tuple(each.item for each in asked)
        self.along = Along({each.item.name: each.given for each in asked if each.given})
        """The given answers, and the notes of their places."""
        self.request = Parsed(self._items, is_batch=True, stream=False)

    @property
    def steps(self) -> int:
        """About the most steps that they take, with prompts in pieces of upstream's least size."""
        longest = max(int(each.sampling_params["max_new_tokens"]) for each in self._items)
        return longest + sum(len(each.input_ids) for each in self._items) // 64

    def read_answers(self, answers: Sequence[Answer]) -> list[Answered]:
        """Return how each question was answered."""
        given, noted = self.along.given, self.along.noted
        return [
            _make_answered(each, noted.get(item.name, []), tuple(given.get(item.name, ())))
            for each, item in zip(answers, self._items, strict=True)
        ]


def in_batches(asked: Sequence[UnseenItem], find_room: FindRoom) -> Iterator[UnseenBatch]:
    """Put those together that find rows and room, in their order."""
    return map(UnseenBatch, put_together(asked, lambda each: each.needs, find_room))


def put_together[T](
    asked: Iterable[T], tokens_of: Callable[[T], int], find_room: FindRoom
) -> Iterator[Sequence[T]]:
    """Yield prompts that find rows and room together, by the tokens that each takes."""
    some, needs = list[T](), list[int]()
    for each in asked:
        needs.append(tokens_of(each))
        if some and (len(needs) > SHADOW_ROWS or not find_room(needs)):
            yield some
            some, needs = [], needs[-1:]
        some.append(each)
    if some:
        yield some


def largest_batch(corpus: Sequence[Question], prompts: Prompts) -> Sequence[int]:
    """Tokens that each question takes of the most that are asked together.

    BadRequest says why one that is built in cannot be asked of this engine, ConfigError which one
    of the corpus cannot be.
    """
    asked = as_items((*questions(), *questions(), *texts(), *corpus, *corpus), prompts)
    needs = sorted((each.needs for each in asked), reverse=True)[:SHADOW_ROWS]
    while len(needs) > 1 and sum(needs) > MOST_TOKENS:
        needs.pop()
    return needs[::-1]


def as_items(asked: Sequence[Question], prompts: Prompts) -> list[UnseenItem]:
    """Make questions fit for the engine; blocks, for the texts may be long.

    ConfigError names the line of a written question that cannot be asked.
    """
    return [_as_item(each, prompts, f"{at:04}") for at, each in enumerate(asked)]


def _as_item(question: Question, prompts: Prompts, name: str) -> UnseenItem:
    request, given = question.request or {"text": question.prompt}, tuple[int, ...]()
    most = {} if isinstance(question, Text) else {"max_new_tokens": question.tokens}
    try:
        parsed = prompts.parse({**request, "sampling_params": {"temperature": 0, **most}})
    except BadRequest as why:
        if not question.place:
            raise
        raise ConfigError(f"[compare] corpus: {question.place}: cannot be asked: {why}") from why
    item = replace(parsed.items[0], is_probe=True, name=name)
    if isinstance(question, Led):
        given = question.answer
    if isinstance(question, Text):
        ids = item.input_ids
        item, given = replace(item, input_ids=ids[:LEAD]), tuple(ids[LEAD:][: question.tokens])
    sampling = {**item.sampling_params, "max_new_tokens": 1 if given else question.tokens}
    ids = [*item.input_ids, *given[:-1]]
    return UnseenItem(replace(item, input_ids=ids, sampling_params=sampling), given)


def _make_answered(
    answer: Answer, noted: Sequence[tuple[Any, int]], given: tuple[int, ...]
) -> Answered:
    if given:
        return Answered(given, "", "length", _make_all_expected(noted[: len(given)]))
    ended: Mapping[str, Any] = answer["meta_info"].get("finish_reason") or {}
    tokens = tuple(answer["output_ids"])
    noted = noted[: min(len(tokens), NOTED)]  # a step more may have been under way
    if tokens and tokens[-1] == ended.get("matched"):
        tokens = tokens[:-1]
    return Answered(tokens, answer["text"], str(ended.get("type", "")), _make_all_expected(noted))


def _make_all_expected(noted: Sequence[tuple[Any, int]]) -> tuple[Expected, ...]:
    return tuple(
        _make_expected([np.asarray(each)[row] for each in arrays]) for arrays, row in noted
    )


def _make_expected(noted: Sequence[Any]) -> Expected:
    token, entropy, values, places = noted
    if not np.isfinite(entropy):
        raise AnswerNonfinite("the weights made NaN or infinities along an answer that was given")
    likeliest = dict(zip(places.tolist(), values.tolist(), strict=True))
    return Expected(float(token), float(entropy), likeliest)
