"""What the page shows after each scene of each life: its own modules, without a browser."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotreload.server.view_routes import PAGE_FOLDER
from tests.golden.blanks import blanked
from tests.golden.compare import Golden
from tests.golden.lives import LOOKED_AT, all_moments
from tests.golden.observed import Observed

DOCUMENT = Path(__file__).with_name("document.mjs")


def seen(observed: Observed) -> dict[str, Any]:
    """What the page asks the daemon for."""
    return {
        "status": observed.status.snapshot(),
        "history": observed.history.snapshot()["attempts"],
        "leaves": observed.status.leaves(),
    }


Told = list[tuple[str, dict[str, Any]]]


def shown(page: Path, scenes: Told) -> str:
    """What the page says at each of these moments, where it is not what it said before."""
    (page / "package.json").write_text('{"type": "module"}')
    command = ["node", "--no-warnings", str(DOCUMENT), str(page)]
    text = subprocess.check_output(command, input=json.dumps(scenes), text=True)
    return blanked(re.sub(r"[ |]+$", "", text, flags=re.MULTILINE))


def parts_at_each(text: str) -> Iterator[dict[str, str]]:
    """What each part of the page says at each moment."""
    parts: dict[str, str] = {}
    for scene in re.split(r"(?m)^=== .* ===$", text)[1:]:
        for part in re.split(r"(?m)^(?=#[\w-]+:)", scene)[1:]:
            name, _, words = part.partition(":")
            parts[name] = words
        yield dict(parts)


@pytest.fixture
def page(tmp_path: Path) -> Path:
    if not shutil.which("node"):
        pytest.skip("there is no node: apt-get install nodejs")
    return Path(shutil.copytree(PAGE_FOLDER, tmp_path / "page"))


def test_page(golden: Golden, page: Path) -> None:
    told = [(each.title, seen(each.observed)) for each in all_moments() if each.title in LOOKED_AT]
    golden("page.txt", shown(page, told))


def test_at_every_moment_the_page_shows_the_sentence_and_each_row(page: Path) -> None:
    told = [(moment.title, seen(moment.observed)) for moment in all_moments()]
    for (title, documents), parts in zip(told, parts_at_each(shown(page, told)), strict=True):
        status = documents["status"]
        assert status["summary"]["words"][1:] in parts["#headline"], title
        for row in status["rows"]:
            if row["name"] not in SHOWN_ELSEWHERE and "share" not in row:
                assert row["name"][1:] in parts["#facts"], title
                for words in SPELT_HERE.split(blanked(row["words"])):
                    assert words in parts["#facts"], title


SHOWN_ELSEWHERE = {"state", "boot", "generation", "waiting for", "phase", "last attempt", "refused"}
SPELT_HERE = re.compile(r"TIME|uid \d+|\n")
"""Moments and people are named as the reader knows them."""
