"""A file of questions: what stands in a line, and what is said of a line that is none."""

import json
from pathlib import Path
from typing import Any

import pytest

from hotreload.behaviour import AnswerCheck, Question
from hotreload.errors import ConfigError
from hotreload.features.compare.settings import MOST_QUESTIONS, USUAL_ANSWER, read_corpus

FILE = Path("prompts.jsonl")
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]


def line(**fields: Any) -> str:
    return json.dumps(fields)


def test_texts_and_chats_with_and_without_an_answer() -> None:
    text = "\n".join(
        [
            line(prompt="2 + 2 =", answer="4", max_tokens=8),
            "",
            line(messages=CHAT, matches="4|four"),
            line(prompt="a line\u2028that goes on"),
        ]
    )
    first, chat, plain = read_corpus(FILE, text)
    assert first == Question(
        "2 + 2 =", 8, check=AnswerCheck("answer", "4"), place="prompts.jsonl: line 1"
    )
    assert (chat.prompt, chat.request, chat.tokens) == ("2 + 2?", {"messages": CHAT}, USUAL_ANSWER)
    assert (chat.check, chat.place) == (AnswerCheck("matches", "4|four"), "prompts.jsonl: line 3")
    assert plain.check is None


BAD = {
    "no JSON": ("{'prompt': 'a'}", "is not JSON: Expecting property name"),
    "no object": ("[]", "must be a JSON object"),
    "deep": ("[" * 100_000, "is nested too deep"),
    "a field nobody knows": (line(promt="a"), "unknown field 'promt'; known are prompt, messages"),
    "nothing to ask": (line(answer="a"), "give either prompt, a text, or messages, a chat"),
    "two to ask": (line(prompt="a", messages=CHAT), "give either prompt"),
    "no text": (line(prompt=5), "prompt: should be a text that is not empty"),
    "an empty text": (line(prompt=" "), "prompt: should be a text that is not empty"),
    "no tokens": (line(prompt="a", max_tokens=0), "max_tokens: should be a whole number"),
    "tokens in words": (line(prompt="a", max_tokens="8"), "max_tokens: should be a whole number"),
    "two checks": (line(prompt="a", answer="b", contains="c"), "give one of answer, contains"),
    "no expression": (line(prompt="a", matches="("), "matches: is no regular expression"),
    "no chat": (line(messages=[]), "messages: should be a list of messages"),
    "no message": (line(messages=[{"role": "user"}]), "messages: each should have a role and"),
    "parts": (line(messages=[{"role": "user", "content": []}]), "content: should be a text"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_line_that_is_no_question_is_named_with_what_to_change(name: str) -> None:
    text, words = BAD[name]
    with pytest.raises(ConfigError) as unfit:
        read_corpus(FILE, f"{line(prompt='good')}\n{text}\n{line(prompt='good')}")
    (fault,) = unfit.value.findings
    assert fault.startswith(f"[compare] corpus: prompts.jsonl: line 2: {words}")


def test_all_faults_are_listed_at_once() -> None:
    with pytest.raises(ConfigError) as unfit:
        read_corpus(FILE, "a\nb")
    assert len(unfit.value.findings) == 2


def test_a_file_of_nothing_and_one_of_too_much_are_refused() -> None:
    with pytest.raises(ConfigError, match="holds no question; write one a line"):
        read_corpus(FILE, "\n \n")
    with pytest.raises(ConfigError, match="holds 1001 questions; take 1000 of them"):
        read_corpus(FILE, "\n".join([line(prompt="a")] * (MOST_QUESTIONS + 1)))
