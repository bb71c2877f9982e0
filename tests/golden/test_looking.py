"""What `hotreload status`, `top`, `history`, `log` and `ls` print at some moments of lives.

At each other moment they print what the daemon says in words, which the files of lives hold.
"""

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from hotreload.cli.client import show
from hotreload.cli.client.texts import status_text, write_words
from hotreload.cli.client.top import TopScreen
from hotreload.client.synchronous import Client
from hotreload.picture.status import Documents
from tests.golden.blanks import blanked
from tests.golden.command import named_colours, run
from tests.golden.compare import Golden, sections
from tests.golden.lives import LOOKED_AT, all_moments
from tests.golden.observed import Observed
from tests.server.world import View, serve

VERBS = ["status", "status --check", "history", "log", "ls"]
WIDTHS = [100, 60]


class Seen(View):
    """What clients see of a life."""

    def __init__(self, observed: Observed) -> None:
        self.ledger, self.listed = observed.ledger, observed.listed
        self.documents = Documents(observed.status, observed.history, observed.checkpoints)


def top(folder: Path, width: int) -> str:
    """A frame of `hotreload top` in a terminal of that width."""
    screen = TopScreen(Client(folder / "hotreload.sock", named_by="the test"))
    screen.look(10.0)
    with patch.dict(os.environ, {"COLUMNS": str(width), "LINES": "40"}):
        lines = screen.lines(colour=True)
    return blanked(named_colours("\n".join(line.rstrip() for line in lines)))


async def printed(folder: Path) -> dict[str, str]:
    """What each look prints at each of the moments."""
    looks: dict[str, Callable[[], str]] = {
        **{verb: partial(run, folder, *verb.split(), colour=True) for verb in VERBS},
        **{f"top {width}": partial(top, folder, width) for width in WIDTHS},
    }
    texts_of: dict[str, dict[str, str]] = {look: {} for look in looks}
    for moment in all_moments():
        if moment.title in LOOKED_AT:
            async with serve(folder, view=Seen(moment.observed)):
                for name, look in looks.items():
                    texts_of[name][moment.title] = await asyncio.to_thread(look)
    assert texts_of["status"].keys() == LOOKED_AT
    return {name: sections(texts) for name, texts in texts_of.items()}


@pytest.fixture(scope="module")
def looks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each look prints of all lives."""
    return asyncio.run(printed(tmp_path_factory.mktemp("looks")))


@pytest.mark.parametrize("look", [*VERBS, *(f"top {width}" for width in WIDTHS)])
def test_a_look(golden: Golden, looks: dict[str, str], look: str) -> None:
    golden(f"command-{look.replace(' --', '-').replace(' ', '-')}.txt", looks[look])


def test_at_every_moment_the_status_shows_the_sentence_and_each_row() -> None:
    now = show.now()
    for moment in all_moments():
        status = moment.observed.status.snapshot()
        shown = flowing(status_text(status, now))
        assert shown.startswith(flowing(write_words(status["summary"]))), moment.title
        for row in status["rows"]:
            assert row["name"] in shown, moment.title
            assert flowing(show.for_here(row["words"], now)) in shown, moment.title


def flowing(text: str) -> str:
    """The words alone: where a terminal breaks a line does not matter."""
    return " ".join(text.replace(show.TIED, " ").split())
