"""docs/words.md: each word once, each used, and no second name for it on any page."""

import re

from tests.docs.pages import BESIDE, CODE, FENCED, PAGES

PAGE = "docs/words.md"
ROWS = re.findall(r"^\| ([a-z ]+) \| .+ \| ([a-z ]*) ?\|$", PAGES[PAGE], re.MULTILINE)[1:]
OTHERS = {page: text for page, text in (PAGES | BESIDE).items() if page != PAGE}


def test_there_are_forty_words_at_most_and_each_stands_once() -> None:
    words = [word for word, _ in ROWS]
    assert 30 < len(words) <= 40
    assert len(set(words)) == len(words)


def test_each_word_is_used() -> None:
    texts = "\n".join(OTHERS.values()).lower()
    assert [word for word, _ in ROWS if not re.search(rf"\b{word}", texts)] == []


def test_no_page_has_a_second_name_for_a_word() -> None:
    names = [name.strip() for _, name in ROWS if name.strip()]
    assert len(names) > 5
    second = re.compile(rf"\b({'|'.join(names)})\b", re.IGNORECASE)
    texts = {page: CODE.sub("", FENCED.sub("", text)) for page, text in OTHERS.items()}
    assert {page: found for page, text in texts.items() if (found := second.findall(text))} == {}
