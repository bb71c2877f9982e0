"""The words, the sayings made of them, and the tokenizer as transformers reads it."""

from typing import Any

import pytest
from transformers import AutoTokenizer

from hotreload.tiny import SAY_DEFAULT, WORDS, parse_saying, write_tiny
from hotreload.tiny.sayings import (
    END_ID,
    FIRST_WORD_ID,
    MAX_WORDS,
    TOKEN_COUNT,
    number_id,
    word_ids,
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    load: Any = AutoTokenizer.from_pretrained
    return load(write_tiny(tmp_path_factory.mktemp("tiny") / "a"))


def tokens_of(text: str) -> list[int]:
    saying = parse_saying(text)
    return [*word_ids(saying), number_id(saying.number)]


def test_the_word_list_holds_each_word_once_in_order() -> None:
    assert sorted(set(WORDS)) == list(WORDS)
    assert {"served", "by", "step", "hello", "world", "generation"} < set(WORDS)


@pytest.mark.parametrize(
    "prompt", ["hello", "served by step 17", "7 a i", "Grüße 你好 🎉\n\t\0", ""]
)
def test_a_prompt_is_encoded_as_its_bytes(tokenizer: Any, prompt: str) -> None:
    ids = tokenizer.encode(prompt)
    assert len(ids) == len(prompt.encode())
    assert all(token < 256 for token in ids)
    assert tokenizer.decode(ids) == prompt


@pytest.mark.parametrize("text", [SAY_DEFAULT, "hello 7", "this is a checkpoint i trained 0"])
def test_an_answer_decodes_to_exactly_the_text(tokenizer: Any, text: str) -> None:
    ids = tokens_of(text)
    assert tokenizer.decode([*ids, END_ID], skip_special_tokens=True) == text
    prompt = tokenizer.encode("and then?")
    assert tokenizer.decode(prompt + ids) == "and then?" + text


def test_an_answer_streams_without_a_stray_space(tokenizer: Any) -> None:
    ids, shown = tokens_of("good morning world 42"), ""
    for end in range(1, len(ids) + 1):
        shown += tokenizer.decode(ids[:end])[len(shown) :]
        assert shown == shown.strip()
    assert shown == "good morning world 42"


def test_the_vocabulary_is_what_the_ids_say(tokenizer: Any) -> None:
    assert len(tokenizer) == TOKEN_COUNT
    assert tokenizer.eos_token_id == END_ID
    assert tokenizer.decode([0]) == "!"
    assert tokenizer.decode([FIRST_WORD_ID + 1]) == f" {WORDS[1]}"


def test_a_chat_becomes_a_prompt(tokenizer: Any) -> None:
    chat = [{"role": "user", "content": "hi"}]
    prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert prompt == "user: hi\nassistant: "


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("", "must end in a number from 0 to 99"),
        ("hello world", "must end in a number from 0 to 99"),
        ("hello 100", "must end in a number from 0 to 99"),
        ("hello 07", "must end in a number from 0 to 99"),
        ("srved by step 1", "'srved' is not in the word list .*: try served"),
        ("Hello 1", "'Hello' is not in the word list .*: try hello"),
        ("xqzzy 1", "nothing in it is close"),
        ("step by step 1", "'step' stands twice: use each word once"),
        ("step 3 of 7", "'3' stands before the end"),
        ("17", "begin with a word of two letters or more"),
        ("a model 1", "'a' cannot come first: begin with a word of two letters or more"),
        ("hello  world 1", "one space between words"),
        (" hello 1", "one space between words"),
        (" ".join(word for word in WORDS[2 : MAX_WORDS + 3]) + " 1", "at most 150"),
    ],
)
def test_a_saying_that_cannot_be_said_is_told_what_to_change(text: str, advice: str) -> None:
    with pytest.raises(ValueError, match=advice):
        parse_saying(text)
