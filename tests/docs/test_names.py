"""What the pages name is there: tests, files, commands, and each other."""

import ast
import re
from functools import cache

import pytest

from hotreload.cli import VERBS
from tests.docs.pages import BESIDE, CODE, FENCED, PAGES, ROOT, anchors, blocks

EVERY = PAGES | BESIDE
TEXT = "\n".join(EVERY.values())
EACH_PAGE = pytest.mark.parametrize("page", EVERY)
FOLDERS = "hotreload|tests|config|systemd|docs|examples|.ci"
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
NAMED_PAGE = re.compile(r"(?:docs/|docs\" }}/)([\w-]+\.md)(?:#([\w-]+))?")
ROW = re.compile(r"^\| \*\*(.+?)\.?\*\*(.*?) \| (.*) \|$", re.MULTILINE)
"""A row of tests/GUARANTEES.md: what is promised in bold, its other words, its tests."""
THE_EIGHT = re.compile(r"^\d\. \*\*(.+?)\.?\*\*(.*)$", re.MULTILINE)
ALL_GUARANTEES = BESIDE["tests/GUARANTEES.md"]


@EACH_PAGE
def test_every_test_it_names_exists(page: str) -> None:
    for file, name in NAMED_TEST.findall(EVERY[page]):
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        names = {node.name for node in body_of(file) if isinstance(node, functions)}
        assert name in names, f"{file}::{name}"


@cache
def body_of(file: str) -> list[ast.stmt]:
    """What stands in a file of tests, of which pages name many."""
    return ast.parse((ROOT / file).read_text()).body


def test_every_guarantee_is_one_sentence_and_names_a_test_that_shows_it() -> None:
    rows = ROW.findall(ALL_GUARANTEES)
    assert len(rows) > 150
    for title, rest, tests in rows:
        assert NAMED_TEST.search(tests), title
        assert not re.search(r"[.;] ", title + rest), title


def test_the_eight_stand_among_the_others_and_the_readme_names_tests_of_theirs() -> None:
    eight = THE_EIGHT.findall(PAGES["docs/guarantees.md"])
    assert len(eight) == 8
    assert {title for title, _ in eight} <= {title for title, _, _ in ROW.findall(ALL_GUARANTEES)}
    shown = [set(NAMED_TEST.findall(rest)) for _, rest in eight]
    assert all(shown)
    assert set().union(*shown) <= set(NAMED_TEST.findall(ALL_GUARANTEES))
    in_readme = set(NAMED_TEST.findall(PAGES["README.md"]))
    assert len(in_readme) >= 4
    assert in_readme <= set().union(*shown)


def is_at_night(file: str, name: str) -> bool:
    """Whether neither `make test` nor CI runs any case of it."""
    marks = [mark for node in body_of(file) for mark in marks_of(node, name)]
    return "pytest.mark.at_night" in map(ast.unparse, marks)


def marks_of(node: ast.stmt, name: str) -> list[ast.expr]:
    """The marks of this test, or of all tests of the file; a case of several is none."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() if node.name == name:
            return node.decorator_list
        case ast.Assign(targets=[ast.Name(id="pytestmark")], value=ast.List(elts=marks)):
            return marks
    return []


def test_what_only_the_night_shows_is_said_to_be_shown_then() -> None:
    """The table says that `make test` runs all others, and the eight."""
    said = re.findall(rf"{NAMED_TEST.pattern} \(night\)", ALL_GUARANTEES)
    assert said == [each for each in NAMED_TEST.findall(ALL_GUARANTEES) if is_at_night(*each)]
    eight = NAMED_TEST.findall(PAGES["docs/guarantees.md"])
    assert [each for each in eight if is_at_night(*each)] == []


@EACH_PAGE
def test_every_file_it_names_exists(page: str) -> None:
    named = re.compile(rf"[`(]((?:{FOLDERS})/[\w./-]*)")
    paths = named.findall(FENCED.sub("", EVERY[page]))
    assert [path for path in sorted({*paths}) if not (ROOT / path).exists()] == []


def test_every_module_it_names_exists() -> None:
    modules = set(re.findall(r"python -m (tests[\w.]+)", TEXT))
    assert modules
    for module in modules:
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists()


@EACH_PAGE
def test_every_link_leads_somewhere(page: str) -> None:
    folder = (ROOT / page).parent
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", EVERY[page])):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (folder / path).resolve() if path else ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text()), link


@EACH_PAGE
def test_no_two_headings_have_one_anchor(page: str) -> None:
    headings = re.findall(r"^#+ .+$", FENCED.sub("", EVERY[page]), re.MULTILINE)
    assert len(anchors(EVERY[page])) == len(headings)


def test_every_page_is_found_from_the_readme() -> None:
    found = re.findall(r"\]\((docs/[\w-]+\.md)(?:#[\w-]+)?\)", PAGES["README.md"])
    assert set(PAGES) - set(found) == {"README.md"}


def test_every_page_that_is_named_elsewhere_exists() -> None:
    """By the command, the units, the rules and the dashboard."""
    files = (path for folder in FOLDERS.split("|") for path in (ROOT / folder).rglob("*.*"))
    texts = [path for path in files if path.suffix in {".py", ".js", ".yml", ".json", ".toml"}]
    named = {each for path in texts for each in NAMED_PAGE.findall(path.read_text())}
    assert len(named) > 10
    for page, anchor in named:
        assert f"docs/{page}" in PAGES, page
        assert not anchor or anchor in anchors(PAGES[f"docs/{page}"]), anchor


def test_every_target_and_verb_it_names_exists() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    said = "\n".join([*CODE.findall(FENCED.sub("", TEXT)), *blocks(r"\w+", TEXT)])
    made = set(re.findall(r"^(?:\$ )?make (\w+)", said, re.MULTILINE))
    verbs = set(re.findall(r"^(?:\$ |sudo )?hotreload ([a-z][\w-]*)", said, re.MULTILINE))
    assert made
    assert made <= targets
    assert verbs - VERBS.keys() == set()
    assert len(verbs) > 10


def test_every_package_has_its_row_in_the_architecture() -> None:
    packages = {f"hotreload/{init.parent.name}/" for init in ROOT.glob("hotreload/*/__init__.py")}
    rows = re.findall(r"^\| `(hotreload/\w+/)` \|", PAGES["docs/architecture.md"], re.MULTILINE)
    assert set(rows) == packages
