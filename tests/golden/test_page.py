"""What the page shows after each scene of each life: its own modules, without a browser."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hotreload.server.status_page import FOLDER
from tests.golden.blanks import blanked
from tests.golden.compare import Golden
from tests.golden.lives import LIVES
from tests.golden.observed import Observed

DOCUMENT = Path(__file__).with_name("document.mjs")


def seen(observed: Observed) -> dict[str, object]:
    """What the page asks the daemon for."""
    return {
        "status": observed.status.snapshot(),
        "history": observed.history.snapshot()["attempts"],
        "leaves": observed.status.leaves(),
    }


def scenes() -> list[tuple[str, dict[str, object]]]:
    told = []
    for life, (played, begin) in LIVES.items():
        observed = begin()
        for scene in played:
            observed.play(scene)
            told.append((f"{life}: {scene.name}", seen(observed)))
    return told


@pytest.mark.skipif(not shutil.which("node"), reason="there is no node: apt-get install nodejs")
def test_page(golden: Golden, tmp_path: Path) -> None:
    page = shutil.copytree(FOLDER, tmp_path / "page")
    (page / "package.json").write_text('{"type": "module"}')
    command = ["node", "--no-warnings", str(DOCUMENT), str(page)]
    text = subprocess.check_output(command, input=json.dumps(scenes()), text=True)
    golden("page.txt", blanked(re.sub(r"[ |]+$", "", text, flags=re.MULTILINE)))
