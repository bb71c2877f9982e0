"""The settings of how new weights are compared with the live ones before they answer.

The operator's own questions are a file of JSON objects, one a line.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self, override

from hotreload.behaviour import AnswerCheck, Question
from hotreload.errors import ConfigError
from hotreload.features.compare.answer_checks import CHECK_KINDS
from hotreload.setting import (
    AtMost,
    Bounds,
    Deadline,
    NamedFile,
    PartOfAll,
    SettingsOfFeature,
    setting,
)

USUAL_ANSWER = 32
"""Tokens of an answer where the line does not say."""
MOST_QUESTIONS = 1000
"""Each is answered, and led along, by both weights, and what they expected is held till the end."""
PROMPT_FIELDS = ("prompt", "messages")
CORPUS_FIELDS = (*PROMPT_FIELDS, "max_tokens", *CHECK_KINDS)


CORPUS = "[compare] corpus"
MOST_BYTES = 64 * 2**20
"""A file that is longer was not meant."""


def read_corpus(file: Path, text: str) -> tuple[Question, ...]:
    """The questions in this text of the file; ConfigError names each line at fault."""
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
        raise ConfigError.from_faults([f"{CORPUS}: {each}" for each in faults])
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


UNDECIDING_SECONDS = 2.0
"""The most time that a comparison by which nothing decides keeps new weights from going live.

They wait for it only where one set of weights answers at a time.
"""


@dataclass(frozen=True, slots=True)
class CompareLimits:
    """Limits on how new weights may differ from the live ones; beyond one they are refused.

    Unset, each allows everything. One that could not be measured is broken,
    but for those along answers where the live weights say nothing.
    """

    min_agreement: PartOfAll | None = setting(
        None,
        "The least part of an answer that must be equal, up to the first token that differs, on "
        "average.",
        live=True,
        example=0.3,
    )
    max_kl: AtMost | None = setting(
        None,
        "The largest mean Kullback-Leibler divergence of a token, in nats, along the live "
        "weights' answers.",
        live=True,
        example=0.5,
    )
    max_kl_over_noise: AtMost | None = setting(
        None,
        "The same, as a multiple of the live weights' divergence from themselves.",
        live=True,
        example=1000.0,
    )
    max_perplexity_ratio: AtMost | None = setting(
        None,
        "How many times as much plain texts may surprise the new weights.",
        live=True,
        example=1.2,
    )
    max_length_ratio: AtMost | None = setting(
        None, "How many times as long, or as short, answers may be.", live=True, example=2.0
    )
    min_accuracy: PartOfAll | None = setting(
        None, "The least share of right answers to the corpus.", live=True, example=0.8
    )
    min_change: AtMost | None = setting(
        None,
        "The least mean divergence: less is probably a copy of the wrong folder.",
        live=True,
        example=1e-6,
    )
    max_heard_perplexity_ratio: AtMost | None = setting(
        None, "The perplexity ratio along clients' answers, of 16 or more.", live=True, example=1.5
    )
    min_heard_same_top: PartOfAll | None = setting(
        None,
        "The least share of their places where both expect the same token.",
        live=True,
        example=0.5,
    )

    @property
    def are_any(self) -> bool:
        """True if something is not allowed."""
        return self != CompareLimits()

    @property
    def are_of_heard(self) -> bool:
        """True if something is not allowed along clients' answers."""
        return (self.max_heard_perplexity_ratio, self.min_heard_same_top) != (None, None)


@dataclass(frozen=True, slots=True)
class CompareSettings(SettingsOfFeature):
    """New weights beside those that were live, asked the same questions.

    With limits that is done before they answer clients. Without, it decides nothing: they go live,
    and the history shows how they differ once that is known.
    """

    report: bool = setting(
        True,
        "Whether to compare new weights with the live ones. Engines that can only drain, and "
        "several hosts, do not.",
        was="behaviour.report",
    )
    time: Deadline = setting(
        40.0,
        "How long it may take with limits; then the checkpoint is postponed. Without limits the "
        "next checkpoint ends it; if swaps drain it takes 2 s at most.",
        live=True,
        was="behaviour.time",
    )
    corpus: NamedFile | None = setting(
        None,
        "File of your own questions: a JSON object a line, with prompt or messages, max_tokens, "
        "and answer, contains or matches. Read again with the settings.",
        live=True,
        example="/etc/hotreload/prompts.jsonl",
        was="behaviour.corpus",
    )
    mirror: PartOfAll = setting(
        0.0,
        "The share of requests, of those that end while a checkpoint waits, to compare by, too.",
        was="behaviour.mirror",
    )
    replay: Annotated[int, Bounds(least=0, most=1000, is_strict=True)] = setting(
        0,
        "How many of the last requests to keep in memory, and to compare by, too.",
        was="behaviour.replay",
    )
    limits: CompareLimits = setting(CompareLimits(), was="behaviour.limits")

    def __post_init__(self) -> None:
        """ValueError says which settings contradict each other."""
        if self.limits.min_accuracy is not None and self.corpus is None:
            raise ValueError("limits.min_accuracy needs a corpus that says what answers it expects")
        if self.limits.are_any and not self.report:
            raise ValueError("limits are kept by the report: set report = true, or leave them out")
        if self.limits.are_of_heard and not (self.mirror or self.replay):
            raise ValueError("limits on what clients were answered need mirror or replay")

    @property
    def hears(self) -> bool:
        """True if requests of clients are recorded: none are without a comparison."""
        return self.report and (self.mirror > 0 or self.replay > 0)

    @property
    def questions(self) -> tuple[Question, ...]:
        """The operator's own questions."""
        if self.corpus is None:
            return ()
        assert self.corpus.content, f"{self.corpus} was not read"
        return tuple(self.corpus.content)

    def seconds(self, *, is_dry_run: bool) -> float:
        """Return the time for it before new weights go live.

        It is little where nothing decides by it and they wait for it all the same.
        """
        waits_in_vain = not (is_dry_run or self.limits.are_any)
        return min(self.time, UNDECIDING_SECONDS) if waits_in_vain else self.time

    @override
    def unfit_for_hosts(self, beside: str) -> Iterator[tuple[str, str]]:
        if self.limits.are_any:
            yield "limits", f"none {beside}: new weights are not compared there"

    @override
    def engine_needs(self) -> Mapping[str, Any]:
        return {"compares": self.report, "corpus": self.questions, "hears": self.hears}

    @override
    def with_files(self) -> Self:
        if self.corpus is None:
            return self
        file, questions = self.corpus.file, _read(self.corpus.file)
        if self.limits.min_accuracy is not None and not any(each.check for each in questions):
            words = "no line says which answer it expects, and [compare.limits] min_accuracy asks "
            raise ConfigError(f"{CORPUS}: {file}: {words}for right ones; add answer to some")
        return replace(self, corpus=NamedFile(file, questions))


def _read(file: Path) -> tuple[Question, ...]:
    try:
        size = file.stat().st_size
        if size > MOST_BYTES:
            raise ConfigError(f"{CORPUS}: {file}: has {size} bytes, and {MOST_BYTES} are allowed")
        return read_corpus(file, file.read_bytes().decode("utf-8-sig"))
    except OSError as fault:
        raise ConfigError(f"{CORPUS}: {file}: cannot be read: {fault.strerror}") from fault
    except UnicodeDecodeError as fault:
        raise ConfigError(f"{CORPUS}: {file}: is not UTF-8 text; save it as such") from fault
