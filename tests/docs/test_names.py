"""What the pages name is there: tests, files, commands, and each other."""

import ast
import re

import pytest

from hotreload.cli import GROUPS
from tests.docs.pages import ALL, CODE, FENCED, PAGES, README, ROOT, anchors, blocks

EACH_PAGE = pytest.mark.parametrize("page", PAGES)
FOLDERS = "hotreload|tests|config|systemd|docs|.ci"
NAMED_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
GUARANTEE = re.compile(r"^(?:-|\d\.) \*\*.+$", re.MULTILINE)


def test_the_readme_is_read_in_one_sitting() -> None:
    assert len(README.read_bytes()) <= 18_000


@EACH_PAGE
def test_every_test_it_names_exists(page: str) -> None:
    for file, name in NAMED_TEST.findall(PAGES[page]):
        tree = ast.parse((ROOT / file).read_text())
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        assert name in {n.name for n in tree.body if isinstance(n, functions)}, f"{file}::{name}"


def test_every_guarantee_names_a_test_that_shows_it() -> None:
    guarantees = GUARANTEE.findall(PAGES["docs/guarantees.md"])
    assert len(guarantees) > 50
    assert [each for each in guarantees if not NAMED_TEST.search(each)] == []


def test_the_readme_gives_eight_guarantees_that_stand_among_the_others() -> None:
    given = [each for each in GUARANTEE.findall(PAGES["README.md"]) if NAMED_TEST.search(each)]
    assert len(given) == 8
    shown = {test for each in given for test in NAMED_TEST.findall(each)}
    assert shown <= set(NAMED_TEST.findall(PAGES["docs/guarantees.md"]))


@EACH_PAGE
def test_every_file_it_names_exists(page: str) -> None:
    named = re.compile(rf"[`(]((?:{FOLDERS})/[\w./-]*)")
    paths = named.findall(FENCED.sub("", PAGES[page]))
    assert [path for path in sorted({*paths}) if not (ROOT / path).exists()] == []


def test_every_module_it_names_exists() -> None:
    modules = set(re.findall(r"python -m (tests[\w.]+)", ALL))
    assert modules
    for module in modules:
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists()


@EACH_PAGE
def test_every_link_leads_somewhere(page: str) -> None:
    folder = (ROOT / page).parent
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCED.sub("", PAGES[page])):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (folder / path).resolve() if path else ROOT / page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target.read_text()), link


@EACH_PAGE
def test_no_two_headings_have_one_anchor(page: str) -> None:
    headings = re.findall(r"^#+ .+$", FENCED.sub("", PAGES[page]), re.MULTILINE)
    assert len(anchors(PAGES[page])) == len(headings)


def test_every_page_is_found_from_the_readme() -> None:
    assert set(PAGES) - set(re.findall(r"\]\((docs/\w+\.md)\)", PAGES["README.md"])) == {
        "README.md"
    }


def test_every_target_and_verb_it_names_exists() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    said = "\n".join([*CODE.findall(FENCED.sub("", ALL)), *blocks(r"\w+")])
    made = set(re.findall(r"^(?:\$ )?make (\w+)", said, re.MULTILINE))
    verbs = set(re.findall(r"^(?:\$ |sudo )?hotreload ([a-z][\w-]*)", said, re.MULTILINE))
    assert made
    assert made <= targets
    assert verbs - {name for _, names in GROUPS for name in names} == set()
    assert len(verbs) > 10


def test_every_package_has_its_row_in_the_architecture() -> None:
    packages = {f"hotreload/{init.parent.name}/" for init in ROOT.glob("hotreload/*/__init__.py")}
    rows = re.findall(r"^\| `(hotreload/\w+/)` \|", PAGES["docs/architecture.md"], re.MULTILINE)
    assert set(rows) == packages
