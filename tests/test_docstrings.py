"""A docstring says at once what it is about: it begins with a verb or a noun."""

import ast
from collections.abc import Iterable, Iterator

from tests.source import MODULES, PACKAGE, nodes_of

QUESTIONS = frozenset({"What", "Whether", "How", "Who", "Whoever", "Why", "Where", "Nobody"})
"""A sentence that begins so must be read to its end before one knows what it is about."""


def docstrings_of(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Each with its line: those of modules, classes, functions, attributes and constants."""
    for node in nodes:
        body = getattr(node, "body", None)
        for line in body if isinstance(body, list) else ():
            match line:
                case ast.Expr(ast.Constant(str(words))):
                    yield line.lineno, words


def first_word(words: str) -> str:
    return words.split(maxsplit=1)[0].rstrip(",:;.?") if words.strip() else ""


def test_a_docstring_begins_with_a_verb_or_a_noun() -> None:
    questions = [
        f"{module.relative_to(PACKAGE)}:{line}: {words}"
        for module in MODULES
        for line, words in docstrings_of(nodes_of(module))
        if first_word(words) in QUESTIONS
    ]
    assert questions == []


def test_every_kind_of_docstring_is_looked_at() -> None:
    text = '"""Module."""\nclass A:\n    """Class."""\n    b = 1\n    """Attribute."""\n'
    text += '    def c(self):\n        """What it does."""\nD = 1\n"""Constant."""\n'
    words = {words for _, words in docstrings_of(ast.walk(ast.parse(text)))}
    assert words == {"Module.", "Class.", "Attribute.", "What it does.", "Constant."}
    assert first_word("What it does.") in QUESTIONS
    assert first_word("Whatever comes.") not in QUESTIONS
