"""The operator's own questions: a file of JSON objects, one a line. Pure: reads no file."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hotreload.behaviour import AnswerCheck, Question
from hotreload.features.compare.answer_checks import CHECK_KINDS

USUAL_ANSWER = 32
"""Tokens of an answer where the line does not say."""
MOST_QUESTIONS = 1000
"""Each is answered, and led along, by both weights, and what they expected is held till the end."""
PROMPT_FIELDS = ("prompt", "messages")
CORPUS_FIELDS = (*PROMPT_FIELDS, "max_tokens", *CHECK_KINDS)


class UnfitCorpus(ValueError):
    """Lines that are no questions; `faults` names each."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__(*faults)
        self.faults = faults


def read_corpus(file: Path, text: str) -> tuple[Question, ...]:
    """The questions in this text of the file; UnfitCorpus names each line at fault."""
    questions, faults = list[Question](), list[str]()
    for number, line in enumerate(text.split("\n"), 1):
        place = f"{file}: line {number}"
        try:
            questions += [_question(line, place)] if line.strip() else []
        except ValueError as fault:
            faults.append(f"{place}: {fault}")
    if not questions and not faults:
        faults.append(
            f'{file}: holds no question; write one a line, such as {{"prompt": "2 + 2 ="}}'
        )
    if len(questions) > MOST_QUESTIONS:
        faults.append(f"{file}: holds {len(questions)} questions; take {MOST_QUESTIONS} of them")
    if faults:
        raise UnfitCorpus(faults)
    return tuple(questions)


def _question(line: str, place: str) -> Question:
    asked = _object(line)
    if unknown := sorted(asked.keys() - set(CORPUS_FIELDS)):
        raise ValueError(f"unknown field {unknown[0][:80]!r}; known are {', '.join(CORPUS_FIELDS)}")
    tokens = asked.get("max_tokens", USUAL_ANSWER)
    if type(tokens) is not int or tokens < 1:
        raise ValueError("max_tokens: should be a whole number, at least 1")
    if sum(name in asked for name in PROMPT_FIELDS) != 1:
        raise ValueError("give either prompt, a text, or messages, a chat")
    check = _check(asked)
    if "prompt" in asked:
        return Question(_text(asked, "prompt"), tokens, check=check, place=place)
    messages = [*_messages(asked["messages"])]
    last = messages[-1]["content"]
    return Question(last, tokens, request={"messages": messages}, check=check, place=place)


def _object(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as fault:
        raise ValueError(f"is not JSON: {fault.msg} (character {fault.colno})") from fault
    except RecursionError as fault:
        raise ValueError("is nested too deep") from fault
    if not isinstance(found, dict):
        raise ValueError('must be a JSON object, such as {"prompt": "2 + 2 =", "answer": "4"}')
    return found


def _check(asked: Mapping[str, Any]) -> AnswerCheck | None:
    kinds = [kind for kind in CHECK_KINDS if kind in asked]
    if len(kinds) > 1:
        raise ValueError(f"give one of {', '.join(kinds)}")
    if not kinds:
        return None
    (kind,) = kinds
    text = _text(asked, kind)
    if kind == "matches":
        try:
            re.compile(text)
        except (re.error, OverflowError, RecursionError) as fault:
            raise ValueError(f"matches: is no regular expression: {fault}") from fault
    return AnswerCheck(kind, text)


def _text(asked: Mapping[str, Any], name: str) -> str:
    text = asked[name]
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{name}: should be a text that is not empty")
    return text


def _messages(given: object) -> Iterator[dict[str, str]]:
    if not isinstance(given, list) or not given:
        raise ValueError("messages: should be a list of messages")
    for each in given:
        if not isinstance(each, dict) or each.keys() != {"role", "content"}:
            raise ValueError("messages: each should have a role and a content, and nothing else")
        yield {name: _text(each, name) for name in ("role", "content")}
