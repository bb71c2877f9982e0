"""The text of an answer, made of its tokens as they come."""

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from hotreload.engine.answering.answer_text import (
    MOST_UNSETTLED,
    AnswerText,
    AnswerTexts,
    begun_stop,
)
from hotreload.tiny.sayings import END_ID
from tests.tiny.asked import tiny_tokenizer

FULL = {"type": "length", "length": 9}


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """Each byte is a token of its own, as with models that write a character in several tokens."""
    return PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer())


def ids_of(text: str) -> list[int]:
    ids: list[int] = tokenizer()(text)["input_ids"]
    return ids


def streamed(
    ids: Sequence[int], ended: dict[str, Any], *, prompt: str = "so:", **sampling: Any
) -> Iterator[str]:
    wording = AnswerText(tokenizer(), ids_of(prompt), sampling)
    for count in range(1, len(ids)):
        yield wording.text_of(ids[:count], None)
    yield wording.text_of(ids, ended)


def whole(ids: Sequence[int], ended: dict[str, Any], **sampling: Any) -> str:
    return AnswerText(tokenizer(), ids_of("so:"), sampling).text_of(ids, ended)


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\N{REPLACEMENT CHARACTER}"))


@given(TEXTS.filter(bool))
def test_a_stream_only_grows_and_comes_to_the_whole_text(text: str) -> None:
    ids = ids_of(text)
    pieces = list(streamed(ids, FULL))
    assert pieces[-1] == text == whole(ids, FULL)
    assert all(later.startswith(piece) for piece, later in pairwise(pieces))
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@given(st.text("aäb", min_size=1), st.lists(st.text("aäb", min_size=1, max_size=4), min_size=1))
def test_no_part_of_a_stop_string_is_told(text: str, stops: list[str]) -> None:
    found = [at for stop in stops if (at := text.find(stop)) >= 0]
    # The engine ends an answer at the token with which a stop string is whole.
    end = min((text.find(stop) + len(stop) for stop in stops if stop in text), default=len(text))
    ended = {"type": "stop", "matched": stops[0]} if found else FULL
    pieces = list(streamed(ids_of(text[:end]), ended, stop=stops))
    kept = text[:end][: min((at for s in stops if (at := text[:end].find(s)) >= 0), default=None)]
    assert pieces[-1] == kept
    assert all(kept.startswith(piece) for piece in pieces)


def test_what_was_no_stop_string_after_all_is_told_later() -> None:
    pieces = list(streamed(ids_of("by the way"), FULL, stop="by step"))
    assert pieces[:5] == ["", "", "", "by t", "by th"]


def test_who_wants_the_stop_string_gets_it() -> None:
    ended = {"type": "stop", "matched": "step"}
    assert list(streamed(ids_of("by step"), ended, stop=["step"], no_stop_trim=True))[-2:] == [
        "by ste",
        "by step",
    ]


@pytest.mark.parametrize(("is_shown", "text"), [(False, "done"), (True, "done<|end|>")])
def test_an_end_token_is_shown_as_it_is_asked(is_shown: bool, text: str) -> None:
    ids, kept = [*ids_of("done"), END_ID], {"skip_special_tokens": not is_shown}
    assert whole(ids, FULL, **kept) == text
    matched = {"type": "stop", "matched": END_ID}
    assert whole(ids, matched, **kept) == "done"
    assert whole(ids, matched, **kept, no_stop_trim=True) == text


def test_half_a_character_at_the_end_is_told_as_it_is() -> None:
    assert list(streamed(ids_of("né")[:-1], FULL)) == ["n", "n\N{REPLACEMENT CHARACTER}"]


def test_each_answer_to_a_batch_is_worded_by_its_own_request() -> None:
    ids = [ids_of("so:"), ids_of("and:")]
    sampling = [{"skip_special_tokens": False}, None]
    asked = {"input_ids": ids, "sampling_params": sampling, "copies": 2}
    texts = AnswerTexts(tokenizer(), asked)
    said = [*ids_of("done"), END_ID]
    for index, text in enumerate(["done<|end|>"] * 2 + ["done"] * 2):
        assert texts.add_text(piece(said[:2], index=index))["text"] == "do"
        assert texts.add_text(piece(said, index=index))["text"] == text


def test_a_piece_that_has_its_text_keeps_it() -> None:
    texts = AnswerTexts(tokenizer(), {"input_ids": ids_of("so:")})
    assert texts.add_text(piece(ids_of("done")))["text"] == "done"
    ended = piece(ids_of("done"), FULL, text="as the engine says")
    assert texts.add_text(ended)["text"] == "as the engine says"


def piece(ids: list[int], ended: Any = None, **more: Any) -> dict[str, Any]:
    return {"output_ids": ids, "meta_info": {"finish_reason": ended}, **more}


class WithoutFirstSpace:
    """As Llama's first tokenizer: a token is a word, and the space before a text's first is not."""

    words: list[tuple[int, ...]]

    def __init__(self) -> None:
        self.words = []

    def decode(self, ids: Sequence[int], **flags: bool) -> str:
        self.words.append(tuple(ids))
        return " ".join(f"w{id}" for id in ids)


def test_the_space_between_prompt_and_answer_stays() -> None:
    wording = AnswerText(WithoutFirstSpace(), [1, 2], {})
    assert wording.text_of([3], None) == " w3"
    assert wording.text_of([3, 4], FULL) == " w3 w4"


def test_a_long_answer_is_not_decoded_from_its_begin_with_each_token() -> None:
    tokenizer, ids = WithoutFirstSpace(), list(range(200))
    wording = AnswerText(tokenizer, ids, {})
    for count in range(1, 200):
        wording.text_of(ids[:count], None)
    assert wording.text_of(ids, FULL) == "".join(f" w{id}" for id in ids)
    assert max(map(len, tokenizer.words)) <= 2 * MOST_UNSETTLED
    assert sum(map(len, tokenizer.words)) < 20 * len(ids)


@pytest.mark.parametrize(
    ("text", "stops", "size"),
    [
        ("one two", ["two!"], 3),
        ("one two", ["two"], 3),
        ("one two", ["other"], 1),
        ("one two", ["x"], 0),
        ("aaa", ["aab"], 2),
        ("", ["x"], 0),
        ("ab", ["b", "abc"], 2),
    ],
)
def test_the_begin_of_a_stop_string_is_seen(text: str, stops: list[str], size: int) -> None:
    assert begun_stop(text, stops) == size
