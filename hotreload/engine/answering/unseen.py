"""Questions that weights are asked where nobody sees the answers: how, and what came of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hotreload.behaviour.asked import LEAD, Answered, Expected, Question
from hotreload.behaviour.built_in import questions, texts
from hotreload.engine.answering.answers import Answer
from hotreload.engine.answering.items import Item, Parsed
from hotreload.engine.answering.prompts import Prompts
from hotreload.engine.lanes.along import Along


class UnseenBatch:
    """Questions that are asked together."""

    def __init__(self, questions: Sequence[Question], prompts: Prompts) -> None:
        asked = [_asked(each, prompts, f"{at:03}") for at, each in enumerate(questions)]
        self._items = tuple(item for item, _ in asked)
        self.along = Along({item.name: given for item, given in asked if given})
        """The answers that are given, and what is noted."""
        self.request = Parsed(self._items, is_batch=True, stream=False)

    def answered(self, answers: Sequence[Answer]) -> list[Answered]:
        """Return how each question was answered."""
        pairs = zip(answers, self._items, strict=True)
        return [_answered(each, self.along.noted.get(item.name, [])) for each, item in pairs]


def tokens_asked(prompts: Prompts) -> list[int]:
    """Tokens that each question of the largest batch takes with its answer."""
    batch = UnseenBatch((*questions(), *questions(), *texts()), prompts)
    items = batch.request.items
    return sorted(len(each.input_ids) + each.sampling_params["max_new_tokens"] for each in items)


def _asked(question: Question, prompts: Prompts, name: str) -> tuple[Item, tuple[int, ...]]:
    """The request that asks a question, and the tokens that it goes along."""
    parsed = prompts.parse({"text": question.prompt, "sampling_params": {"temperature": 0}})
    item, given = parsed.items[0], question.along
    if question.is_text:
        ids = item.input_ids
        item, given = replace(item, input_ids=ids[:LEAD]), tuple(ids[LEAD:][: question.tokens])
    to_its_end = {"max_new_tokens": len(given), "ignore_eos": True} if given else {}
    sampling = {**item.sampling_params, "max_new_tokens": question.tokens, **to_its_end}
    return replace(item, sampling_params=sampling, is_probe=True, name=name), given


def _answered(answer: Answer, noted: Sequence[tuple[Any, int]]) -> Answered:
    ended: Mapping[str, Any] = answer["meta_info"].get("finish_reason") or {}
    tokens = tuple(answer["output_ids"])
    noted = noted[: len(tokens)]  # a step more may have been under way
    if tokens and tokens[-1] == ended.get("matched"):
        tokens = tokens[:-1]
    expected = tuple(_expected([np.asarray(each)[row] for each in arrays]) for arrays, row in noted)
    return Answered(tokens, answer["text"], str(ended.get("type", "")), expected)


def _expected(noted: Sequence[Any]) -> Expected:
    token, entropy, values, places = noted
    likeliest = dict(zip(places.tolist(), values.tolist(), strict=True))
    return Expected(float(token), float(entropy), likeliest)
