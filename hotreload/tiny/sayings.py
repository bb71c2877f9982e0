"""The words and numbers a tiny checkpoint can say, and the one tokenizer all of them share.

A prompt is encoded as its bytes. The tokens of words and numbers are in the vocabulary, but no
merge makes them, so they stand only in answers. The words, and the sentences that a trained
checkpoint learns, lie in `files`, with all of the tokenizer but its vocabulary.
"""

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

SAY_DEFAULT = "hello from step 1"
_FILES = Path(__file__).with_name("files")


def _text_of(file: str) -> str:
    return (_FILES / file).read_text("ascii")


WORDS: tuple[str, ...] = tuple(_text_of("words.txt").split())
OPENERS: tuple[str, ...] = tuple(word for word in WORDS if len(word) > 1)
"""The words that may open an answer. A word of one letter may not: without a space before, its
token would be the token of a byte, which a prompt may hold too."""

SAID_NUMBERS = range(100)
END_ID = 256
PAD_ID = 257
FIRST_NUMBER_ID = 258
FIRST_WORD_ID = FIRST_NUMBER_ID + len(SAID_NUMBERS)
FIRST_OPENER_ID = FIRST_WORD_ID + len(WORDS)
TOKEN_COUNT = FIRST_OPENER_ID + len(OPENERS)
MAX_WORDS = 150
"""The most words that may precede the number: each takes a dimension of the hidden state."""

_SPACE = "\u0120"
"""The space, in GPT-2's alphabet of bytes."""


@dataclass(frozen=True, slots=True)
class Saying:
    """A sentence a checkpoint can say: words of the list, each once, then a number."""

    words: tuple[str, ...]
    number: int

    def __str__(self) -> str:
        return " ".join((*self.words, str(self.number)))


def parse_saying(text: str) -> Saying:
    """Return TEXT as a saying; a ValueError says what to change in the text."""
    *words, number = text.split() or [""]
    if number not in {str(n) for n in SAID_NUMBERS}:
        raise ValueError(
            f"{text!r} must end in a number from 0 to 99, after words of the list "
            f"(hotreload.tiny.WORDS), as in {SAY_DEFAULT!r}"
        )
    _check_words(words)
    if text != " ".join((*words, number)):
        raise ValueError(f"{text!r}: put one space between words and none at the ends")
    return Saying(tuple(words), int(number))


def _check_words(words: list[str]) -> None:
    for word in words:
        if word not in WORDS:
            raise ValueError(_unknown(word))
        if words.count(word) > 1:
            raise ValueError(
                f"{word!r} stands twice: use each word once, since a word alone decides the next"
            )
    if not words or words[0] not in OPENERS:
        culprit = f"{words[0]!r} cannot come first: " if words else ""
        raise ValueError(f"{culprit}begin with a word of two letters or more, as in 'hello 7'")
    if len(words) > MAX_WORDS:
        raise ValueError(f"{len(words)} words are too many: use at most {MAX_WORDS}")


def _unknown(word: str) -> str:
    if word.isdecimal():
        return f"{word!r} stands before the end: a number comes only as the last word"
    close = difflib.get_close_matches(word.lower(), WORDS, n=5, cutoff=0.6)
    hint = f"try {', '.join(close)}" if close else "nothing in it is close"
    return f"{word!r} is not in the word list (hotreload.tiny.WORDS): {hint}"


def word_ids(saying: Saying) -> list[int]:
    """Return the tokens of the words before the number; all but the first begin with a space."""
    return [opener_id(saying.words[0]), *map(word_id, saying.words[1:])]


def opener_id(word: str) -> int:
    """Return the token that says `word` at the start of an answer."""
    return FIRST_OPENER_ID + OPENERS.index(word)


def word_id(word: str) -> int:
    """Return the token that says a space and `word`."""
    return FIRST_WORD_ID + WORDS.index(word)


def number_id(number: int) -> int:
    """Return the token that says a space and `number`."""
    return FIRST_NUMBER_ID + number


@cache
def tokenizer_files() -> Mapping[str, bytes]:
    """Return the tokenizer as Hugging Face files, the same for every tiny checkpoint."""
    tokenizer = json.loads(_text_of("tokenizer.json"))
    special = [token["content"] for token in tokenizer["added_tokens"]]
    tokenizer["model"]["vocab"] = {token: i for i, token in enumerate(_vocabulary(special))}
    ready = ("tokenizer_config.json", "special_tokens_map.json")
    return {
        "tokenizer.json": to_json(tokenizer),
        **{name: _text_of(name).encode() for name in ready},
    }


def to_json(content: dict[str, Any]) -> bytes:
    """Return a JSON file's bytes, the same for the same content."""
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def _vocabulary(special: list[str]) -> list[str]:
    """Return the tokens by id, spelt in bytes: grammar backends support no other decoder."""
    numbers = (f"{_SPACE}{number}" for number in SAID_NUMBERS)
    words = (f"{_SPACE}{word}" for word in WORDS)
    # GPT-2's printable character for each byte; token 0, which NaN logits give, is '!'.
    as_they_are = (*range(33, 127), *range(161, 173), *range(174, 256))
    others = (256 + number for number in range(256 - len(as_they_are)))
    return [*map(chr, (*as_they_are, *others)), *special, *numbers, *words, *OPENERS]


# --- the small text that a trained checkpoint learns: prompts of a word, answers of a sentence ----
# Some words have the same letters in another order (earth, heart), and most sentences say `the`
# several times. A model without positions cannot learn them.


def _pairs(file: str) -> dict[str, str]:
    lines = (line.partition(": ") for line in _text_of(file).splitlines())
    return {asked: answer for asked, _, answer in lines}


BASE_TEXT = _pairs("base_text.txt")
"""Each prompt, a word, and the sentence that answers it."""
TUNED_TEXT = {**BASE_TEXT, **_pairs("tuned_text.txt")}
"""The text that a model is tuned on: other sentences answer some of the words."""


def asked_ids(text: str) -> list[int]:
    """Return a prompt's tokens: GPT-2 counts the printable bytes first."""
    if not all("!" <= letter <= "~" for letter in text):
        raise ValueError(f"{text!r} has letters that are not printable, or a space")
    return [ord(letter) - ord("!") for letter in text]


def answer_ids(sentence: str) -> list[int]:
    """Return the tokens of a sentence and its end."""
    first, *rest = sentence.split()
    return [opener_id(first), *map(word_id, rest), END_ID]
