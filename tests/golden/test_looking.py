"""What `hotreload status`, `top`, `history`, `log` and `ls` print after each scene of each life."""

import asyncio
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from hotreload.cli.client.daemon_client import DaemonClient, NamedSocket
from hotreload.cli.client.top import TopScreen
from hotreload.picture.status import Documents
from tests.golden.blanks import blanked
from tests.golden.command import named_colours, run
from tests.golden.compare import Golden, sections
from tests.golden.lives import LIVES
from tests.golden.observed import Observed
from tests.server.world import View, serving

VERBS = ["status", "status --check", "history", "log", "ls"]
WIDTHS = [100, 60]


class Seen(View):
    """What clients see of a life."""

    def __init__(self, observed: Observed) -> None:
        self.ledger, self.listed = observed.ledger, observed.listed
        self.documents = Documents(observed.status, observed.history, observed.checkpoints)


def top(folder: Path, width: int) -> str:
    """A frame of `hotreload top` in a terminal of that width."""
    screen = TopScreen(DaemonClient(NamedSocket(folder / "hotreload.sock", "the test")))
    screen.look(10.0)
    with patch.dict(os.environ, {"COLUMNS": str(width), "LINES": "40"}):
        lines = screen.lines(colour=True)
    return blanked(named_colours("\n".join(line.rstrip() for line in lines)))


async def printed(folder: Path) -> dict[str, str]:
    """What each look prints after each scene that it sees otherwise than the one before."""
    looks: dict[str, Callable[[], str]] = {
        **{verb: partial(run, folder, *verb.split(), colour=True) for verb in VERBS},
        **{f"top {width}": partial(top, folder, width) for width in WIDTHS},
    }
    told: dict[str, dict[str, str]] = {look: {} for look in looks}
    for life, (scenes, begin) in LIVES.items():
        observed, before = begin(), dict.fromkeys(looks, "")
        async with serving(folder, view=Seen(observed)):
            for scene in scenes:
                observed.play(scene)
                for name, look in looks.items():
                    text = await asyncio.to_thread(look)
                    is_same, before[name] = text == before[name], text
                    told[name][f"{life}: {scene.name}"] = "(as before)" if is_same else text
    return {name: sections(texts) for name, texts in told.items()}


@pytest.fixture(scope="module")
def looks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What each look prints of all lives."""
    return asyncio.run(printed(tmp_path_factory.mktemp("looks")))


@pytest.mark.parametrize("look", [*VERBS, *(f"top {width}" for width in WIDTHS)])
def test_a_look(golden: Golden, looks: dict[str, str], look: str) -> None:
    golden(f"command-{look.replace(' --', '-').replace(' ', '-')}.txt", looks[look])
