"""The Dockerfile names files, folders and commands that exist; no image is built here."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hotreload.cli import build_parser
from hotreload.settings.load import Settings

ROOT = Path(__file__).parents[2]
LINES = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text()).splitlines()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TARGETS = ["cpu", "tpu"]


def told(word: str, lines: list[str] = LINES) -> list[str]:
    """What stands behind this word, where it begins a line."""
    return [line.removeprefix(word).strip() for line in lines if line.startswith(f"{word} ")]


def stages() -> dict[str, list[str]]:
    """The instructions of each stage, those of the stage that it is made from first."""
    made = dict[str, list[str]]()
    lines: list[str] = []
    for line in LINES:
        if line.startswith("FROM "):
            source, name = told("FROM", [line])[0].split(" AS ")
            lines = made[name] = [*made.get(source, ())]
        lines.append(line)
    return made


def test_what_is_copied_is_there_and_all_that_docker_is_given() -> None:
    first, *patterns = told_of_docker = (ROOT / ".dockerignore").read_text().splitlines()[1:]
    assert first == "*", told_of_docker
    given = {line.removeprefix("!") for line in patterns if line.startswith("!")}
    assert given == {source for copied in told("COPY") for source in copied.split()[:-1]}
    assert [source for source in given if not (ROOT / source).exists()] == []


def test_there_is_an_image_for_each_kind_of_device_from_a_base_that_never_changes() -> None:
    names = [line.split(" AS ") for line in told("FROM")]
    assert stages().keys() >= set(TARGETS)
    (base,) = {source for source, _ in names if source not in stages()}
    assert re.fullmatch(r"python:3\.12\.\d+-slim-\w+@sha256:[0-9a-f]{64}", base)
    installed = [line for line in told("RUN", stages()["tpu"]) if "pip install" in line]
    assert "'.[tpu]'" in installed[-1]
    assert set(PROJECT["optional-dependencies"]["tpu"]) <= set(shlex.split(installed[0]))


@pytest.mark.parametrize("target", TARGETS)
def test_a_change_of_the_sources_installs_nothing_but_them(target: str, tmp_path: Path) -> None:
    """What is copied before gigabytes are installed is what says which: as Docker sees it."""
    lines = stages()[target]
    installing = next(at for at, line in enumerate(lines) if "pip install" in line)
    for copied in told("COPY", lines[:installing]):
        for source in copied.split()[:-1]:
            shutil.copy(ROOT / source, tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".toml", ".txt"}
    listing = next(line for line in told("RUN", lines[:installing]) if "needed.txt" in line)
    command = listing.replace("python ", f"{shlex.quote(sys.executable)} ", 1)
    subprocess.run(command, shell=True, check=True, cwd=tmp_path)
    assert (tmp_path / "needed.txt").read_text().splitlines() == PROJECT["dependencies"]
    assert "--requirement needed.txt" in lines[installing]
    assert "COPY hotreload hotreload" in lines[installing:]


def test_its_labels_say_what_the_package_says_of_itself() -> None:
    (line,) = told("LABEL", stages()["cpu"])
    prefix = "org.opencontainers.image."
    labels = dict(word.removeprefix(prefix).split("=", 1) for word in shlex.split(line))
    assert labels == {
        "title": PROJECT["name"],
        "description": PROJECT["description"],
        "licenses": PROJECT["license"],
    }


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
