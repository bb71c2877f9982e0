"""The README and the pages of docs/, and what stands in them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (README, *sorted((ROOT / "docs").glob("*.md")))
}
"""Each page by its path from the root."""
BESIDE = {
    str(path.relative_to(ROOT)): path.read_text()
    for pages in ("CONTRIBUTING.md", "hotreload/**/*.md", "tests/**/*.md")
    for path in sorted(ROOT.glob(pages))
}
"""Pages that lie beside the code or the tests that they are about, and the contributor's."""
ALL = "\n".join(PAGES.values())
CODE = re.compile(r"`([^`\n]+)`")
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def marked(name: str) -> re.Pattern[str]:
    """What stands between <!-- name --> and <!-- /name -->."""
    return re.compile(rf"(?<=<!-- {name} -->\n)(.*?)(?=\n<!-- /{name} -->)", re.DOTALL)


def section(name: str) -> str:
    """The marked part of this name, which one page has and no other."""
    texts = (PAGES | BESIDE).values()
    found = [each for text in texts for each in marked(name).findall(text)]
    assert len(found) == 1, f"{len(found)} pages have a part marked {name}"
    return str(found[0])


def first_cells(name: str) -> list[str]:
    """The first cell of each row of a table, without its backquotes."""
    rows = section(name).splitlines()[2:]
    return [row.split("|")[1].strip().strip("`") for row in rows]


def words_in(name: str, column: int) -> set[str]:
    """The words in backquotes of one column of a table."""
    rows = section(name).splitlines()[2:]
    return {word for row in rows for word in CODE.findall(row.split(" | ")[column])}


def blocks(kind: str, text: str = ALL) -> list[str]:
    """What stands in the fenced blocks of a kind: `sh`, `console`, `toml`."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def anchors(text: str) -> set[str]:
    """What a link may name after #: a heading in lower case, its words joined by hyphens."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
