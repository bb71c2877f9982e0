"""The README is read in five minutes, and its first screen says what hotreload is and needs."""

import re
import tomllib

from hotreload.engine.versions import SUPPORTED
from tests.docs.pages import PAGES, ROOT, blocks, section

README = PAGES["README.md"]
FIRST_SCREEN, *PARTS = re.split(r"^## ", README, flags=re.MULTILINE)
MOST_WORDS = 1_200


def part(title: str) -> str:
    """What stands below a heading."""
    (found,) = (each for each in PARTS if each.startswith(title))
    return found


def test_it_is_short() -> None:
    assert len(README.split()) <= MOST_WORDS


def test_the_first_screen_shows_four_lines_of_settings_and_three_commands() -> None:
    (settings,) = blocks("toml", FIRST_SCREEN)
    assert len(settings.splitlines()) == 4
    assert tomllib.loads(settings).keys() == {"engine", "source"}
    (commands,) = blocks("sh", FIRST_SCREEN)
    assert len(commands.splitlines()) == 3
    _, sentence, *_ = FIRST_SCREEN.split("\n\n")
    assert sentence.count(". ") == 0


def test_the_box_says_what_it_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    assert f"Python {' or '.join(versions)}" in FIRST_SCREEN
    (engines,) = re.findall(r"\*\*engines\*\* \|(.*)", FIRST_SCREEN)
    assert [name for name in SUPPORTED if name not in engines] == []


def test_the_models_of_the_box_are_served_by_the_engine_that_it_names() -> None:
    (models,) = re.findall(r"\*\*models\*\* \|(.*)", FIRST_SCREEN)
    older, _, newer = models.partition("with 0.1.0rc0")
    rows = [row.split(" | ") for row in section("families").splitlines()[2:]]
    assert not [row[0] for row in rows if row[1] == "yes" and not is_named(row[0], older)]
    assert not [row[0] for row in rows if row[2] == "yes" and not is_named(row[0], older + newer)]


def is_named(architectures: str, words: str) -> bool:
    """Whether the family of these architectures stands there, as people call it."""
    called = {"QWenLMHead": "Qwen", "Bailing": "Ling", "Glm4": "GLM-4", "MiniMaxM2": "MiniMax"}
    (name,) = re.findall(r"^\W*(\w+?)(?:MoeV2|Moe)?(?:ForCausalLM|Model)", architectures)
    return called.get(name, name) in words


def test_a_line_for_each_of_four_guarantees_names_the_tests_that_show_it() -> None:
    lines = re.findall(r"^\d\. (.+)$", part("What you can rely on"), re.MULTILINE)
    assert len(lines) == 4
    assert [line for line in lines if not re.match(r"\*\*.+\.\*\* `tests/.+::.+`$", line)] == []


def test_nine_rows_lead_to_the_other_pages() -> None:
    assert len(re.findall(r"^\| (?!---|you want)", part("Where to read on"), re.MULTILINE)) == 9
