"""Names and docstrings say at first reading who does what; what does not yet is listed here.

`plain_words.txt` has a line for each name that is bad today, and for each room the number of its
docstrings that must be read twice. The list may only shrink: mend, and remove the line.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.source import MODULES, PACKAGE, nodes_of
from tests.test_docstrings import docstrings_of

LISTED = Path(__file__).with_suffix("").with_name("plain_words.txt")

REVIEWED = {
    "finished": "upstream's name: a property of the grammar of a request",
    "Finding": "the field's word for what a check finds",
    "NotServing": "of the library's contract: the error while no request is answered",
    "Saying": "a noun: a short sentence",
    "Setting": "the field's word for a line of the configuration",
    "routing": "the field's word for which process answers a request",
    "loading": "of the library's contract: the property StagedWeights.loading",
    "released": "of the library's contract: the property HotEngine.released",
    "setting": "the module of Setting",
    "held": "the contract's word for requests that wait at a closed gate",
    "staging": "the contract's name of the phase, whose progress this is",
    "padding": "the field's word for what fills a batch",
    "sharding": "the engine's word for how an array lies on devices",
    "staged": "of the library's contract: the property HotEngine.staged",
}
"""Names that look bad and are good: words of the field, or of the contract; each with why."""

PARTICIPLE = re.compile(
    "([a-z]+ed|[a-z]+ing|begun|bound|built|chosen|done|drawn|driven|fallen|found|frozen|given|gone"
    "|heard|held|hidden|kept|known|led|left|lent|lost|made|meant|met|paid|said|seen|sent|shown"
    "|spoken|spent|stuck|taken|thought|told|withheld|woken|won|worn|written)"
)
"""One word that is a participle, of the past or the present."""

IMPERATIVE = re.compile("bring|embed|exceed|feed|heed|need|ping|proceed|ring|seed")
"""Words that end so, too, and are none."""

RIDDLES = re.compile(
    r"\b([Ww]ho|[Ww]hoever|[Ww]hom|[Nn]obody|[Ss]omebody|[Hh]e|[Hh]im|[Hh]is"
    r"|[Tt]ells?|[Tt]old|[Hh]ears?|[Hh]eard|[Ww]hat is)\b|(^|[.:] )So\b"
)
"""Words behind which a reader must look for the actor or the thing."""

SLACK = 5
"""How far a room's count may fall below its ceiling before the ceiling must follow."""


def is_gerund(name: str) -> bool:
    """Whether a module or a class is named by what it does instead of by what it is."""
    return name.endswith("ing") and name not in REVIEWED


def is_participle(name: str) -> bool:
    """Whether a function is named by one participle instead of by an act."""
    word = name.strip("_")
    return bool(
        PARTICIPLE.fullmatch(word) and not IMPERATIVE.fullmatch(word) and word not in REVIEWED
    )


def room_of(module: Path) -> str:
    inside = module.relative_to(PACKAGE).parts
    return inside[0] if len(inside) > 1 else PACKAGE.name


def bad_names(module: Path) -> Iterator[str]:
    """`kind name` of each bad name in the module, the module's own included."""
    if is_gerund(module.stem):
        yield f"module {module.stem}"
    for node in nodes_of(module):
        match node:
            case ast.ClassDef(name) if (
                is_gerund(re.split("(?=[A-Z])", name)[-1]) and name not in REVIEWED
            ):
                yield f"class {name}"
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) if is_participle(name):
                yield f"function {name}"


def riddles_in(module: Path) -> int:
    return sum(bool(RIDDLES.search(words)) for _, words in docstrings_of(nodes_of(module)))


@cache
def found() -> tuple[frozenset[str], dict[str, int]]:
    """Every `room kind name` of the package, and of each room its docstrings to be read twice."""
    names = frozenset(f"{room_of(m)} {name}" for m in MODULES for name in bad_names(m))
    riddles: Counter[str] = Counter()
    for module in MODULES:
        riddles[room_of(module)] += riddles_in(module)
    return names, riddles


@cache
def listed() -> tuple[frozenset[str], dict[str, int]]:
    lines = LISTED.read_text().splitlines()
    ceilings = [line.split() for line in lines if " riddles " in line]
    assert lines == sorted(set(lines)), "one line for each, in order"
    return (
        frozenset(line for line in lines if " riddles " not in line),
        {room: int(count) for room, _, count in ceilings},
    )


def test_no_bad_name_is_new() -> None:
    new = found()[0] - listed()[0]
    assert not new, f"a thing is a noun, a function an imperative verb: {sorted(new)}"


def test_no_bad_name_is_listed_that_is_gone() -> None:
    gone = listed()[0] - found()[0]
    assert not gone, f"remove these lines from {LISTED.name}: {sorted(gone)}"


def test_a_room_has_no_more_docstrings_to_be_read_twice() -> None:
    riddles, ceilings = found()[1], listed()[1]
    over = {room: n for room, n in riddles.items() if n > ceilings.get(room, 0)}
    under = {room: riddles[room] for room, n in ceilings.items() if n > riddles[room] + SLACK}
    assert not over, f"name the request, client, process or thread (who, nobody, tell, So): {over}"
    assert not under, f"lower these ceilings in {LISTED.name}: {under}"


def test_each_reviewed_name_is_still_there() -> None:
    text = "\n".join(module.read_text() for module in MODULES)
    gone = [name for name in REVIEWED if not re.search(rf"\b_*{name}\b", text)]
    assert not gone, f"remove these from REVIEWED: {gone}"


@pytest.mark.parametrize("name", ["told", "_made", "answering", "_listed", "withheld"])
def test_a_participle_is_no_name_of_a_function(name: str) -> None:
    assert is_participle(name)


@pytest.mark.parametrize("name", ["tell", "is_armed", "feed", "until_compared", "_sharding"])
def test_an_imperative_is(name: str) -> None:
    assert not is_participle(name)


@pytest.mark.parametrize(
    ("words", "is_riddle"),
    [
        ("Tell nobody.", True),
        ("Close the gate. So no request waits.", True),
        ("Frees the weights that he held.", True),
        ("Wakes every waiter; each re-checks its condition.", False),
        ("Returns the whole shape, so that no leaf is read twice.", False),
    ],
)
def test_a_riddle_is_known_by_its_words(words: str, is_riddle: bool) -> None:
    assert bool(RIDDLES.search(words)) is is_riddle
