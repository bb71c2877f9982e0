"""The Dockerfile names files, folders and commands that exist; no image is built here."""

import json
import re
from pathlib import Path

import pytest

from hotreload.cli import build_parser
from hotreload.settings.load import Settings

ROOT = Path(__file__).parent.parent
LINES = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text()).splitlines()


def told(word: str) -> list[str]:
    """What stands behind this word, where it begins a line."""
    return [line.removeprefix(word).strip() for line in LINES if line.startswith(f"{word} ")]


def test_what_is_copied_is_there_and_not_left_out() -> None:
    left_out = (ROOT / ".dockerignore").read_text().splitlines()
    for copied in told("COPY"):
        *sources, _ = copied.split()
        for source in sources:
            assert (ROOT / source).exists(), source
            assert source not in left_out


def test_there_is_an_image_for_each_kind_of_device_made_of_what_is_installed() -> None:
    names = [line.split(" AS ") for line in told("FROM")]
    assert {name for _, name in names} >= {"cpu", "tpu"}
    stages = {name for _, name in names}
    assert {source for source, _ in names if source not in stages} == {"python:3.12-slim"}
    assert "'.[tpu]'" in next(line for line in told("RUN") if "tpu" in line)


@pytest.mark.parametrize(
    "line", [*told("CMD"), *(h[h.index("CMD") + 4 :] for h in told("HEALTHCHECK"))]
)
def test_its_commands_are_ours(line: str) -> None:
    program, *words = json.loads(line)
    assert program == "hotreload"
    build_parser().parse_args(words)


def test_the_usual_folders_are_made_for_its_user() -> None:
    made = next(line for line in told("RUN") if "install -d" in line)
    settings = Settings()
    for folder in (settings.server.socket.parent, settings.state.directory):
        assert str(folder) in made
    assert set(told("USER")) == {"hotreload"}
