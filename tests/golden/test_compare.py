"""What differs is shown and can be written anew, and every golden file is compared by a test."""

import re
from pathlib import Path

import pytest

from tests.golden.compare import FILES, ROOT, Golden

NAME = re.compile(r'"([^"\n]+\.(?:txt|json))"')
VARIABLE = re.compile(r"\\\{.*?\\\}")
COMPARING = [*Path(__file__).parent.glob("test_*.py"), ROOT / "tests/messages/test_messages.py"]
DIFFERS = """\
words.txt is not what it was:
--- golden
+++ now
@@ -1,2 +1,2 @@
 one
-two
+three
If every line of this is meant: python -m pytest tests/it.py --update-golden"""


def test_what_differs_is_shown_with_the_command_that_signs_it(tmp_path: Path) -> None:
    writing, comparing = (Golden("tests/it.py", update, tmp_path) for update in (True, False))
    writing("words.txt", "one\ntwo")
    comparing("words.txt", "one\ntwo\n")
    with pytest.raises(pytest.fail.Exception) as told:
        comparing("words.txt", "one\nthree")
    assert str(told.value) == DIFFERS
    with pytest.raises(pytest.fail.Exception, match=r"\+one"):
        comparing("unknown.txt", "one")


def test_a_section_is_written_and_compared_alone(tmp_path: Path) -> None:
    writing, comparing = (Golden("tests/it.py", update, tmp_path) for update in (True, False))
    for title, text in (("a row", "one"), ("another", "two"), ("a row", "three\n")):
        writing.section("words.txt", title, text)
    assert comparing.sections("words.txt") == {"a row": "three", "another": "two"}
    comparing.section("words.txt", "another", "two")
    with pytest.raises(pytest.fail.Exception, match=r"words\.txt, 'a row' is not what it was"):
        comparing.section("words.txt", "a row", "two")


def test_every_golden_file_is_compared_by_a_test() -> None:
    named = {name for test in COMPARING for name in NAME.findall(test.read_text())}
    patterns = [VARIABLE.sub(".+", re.escape(name)) for name in named]
    kept = [path.name for path in FILES.iterdir()]
    assert [name for name in kept if not any(re.fullmatch(p, name) for p in patterns)] == []


LONGEST = 20 * 1024
"""Bytes of a golden file, so that a diff of it is read."""


def test_a_golden_file_is_short_enough_to_be_read() -> None:
    sizes = {path.name: path.stat().st_size for path in FILES.iterdir()}
    assert {name: size for name, size in sizes.items() if size > LONGEST} == {}
