"""The Dockerfile names files, folders and commands that exist.

`make soak` builds it and runs the image (tests/soak/test_image.py).
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from hotreload.cli import build_parser
from hotreload.facts.names import DEFAULT_CONFIG
from hotreload.settings.load import Settings

ROOT = Path(__file__).parents[2]
LINES = re.sub(r"\\\n\s*", "", (ROOT / "Dockerfile").read_text()).splitlines()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def told(word: str, lines: list[str] = LINES) -> list[str]:
    """What stands behind this word, where it begins a line."""
    return [line.removeprefix(word).strip() for line in lines if line.startswith(f"{word} ")]


def test_what_is_copied_is_there_and_all_that_docker_is_given() -> None:
    first, *patterns = told_of_docker = (ROOT / ".dockerignore").read_text().splitlines()[1:]
    assert first == "*", told_of_docker
    given = {line.removeprefix("!") for line in patterns if line.startswith("!")}
    copied = [line.split() for line in told("COPY") if not line.startswith("--from=built ")]
    assert given == {source for *sources, _ in copied for source in sources}
    assert [source for source in given if not (ROOT / source).exists()] == []


def test_it_is_made_from_a_base_that_never_changes() -> None:
    base, *stages = told("FROM")
    assert re.fullmatch(r"python:3\.12\.\d+-slim-\w+@sha256:[0-9a-f]{64} AS base", base)
    assert {stage.split(" AS ")[0] for stage in stages} == {"base"}


@pytest.mark.parametrize(
    ("device", "more"), [("cpu", []), ("tpu", EXTRAS["tpu"]), ("gpu", EXTRAS["gpu"])]
)
def test_a_change_of_the_sources_installs_nothing_but_them(
    device: str, more: list[str], tmp_path: Path
) -> None:
    """What is copied before gigabytes are installed is what says which: as Docker sees it."""
    first = next(at for at, line in enumerate(LINES) if "pip " in line and "--requirement" in line)
    for copied in told("COPY", LINES[:first]):
        for source in copied.split()[:-1]:
            shutil.copy(ROOT / source, tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".toml", ".txt"}
    listing, *installing = told("RUN", [LINES[first]])[0].split(" && ")
    assert "DEVICE=cpu" in told("ARG", LINES[:first])
    command = listing.replace("python3 ", f"{shlex.quote(sys.executable)} ", 1)
    environ = {**os.environ, "DEVICE": device}
    subprocess.run(command, shell=True, check=True, cwd=tmp_path, env=environ)
    listed = (tmp_path / "needed.txt").read_text().splitlines()
    assert listed == [*PROJECT["dependencies"], *more]
    assert any("--requirement needed.txt" in each for each in installing)
    assert "COPY hotreload hotreload" in LINES[first:]


def test_its_labels_say_what_the_package_says_of_itself() -> None:
    (line,) = told("LABEL")
    prefix = "org.opencontainers.image."
    labels = dict(word.removeprefix(prefix).split("=", 1) for word in shlex.split(line))
    assert labels == {
        "title": PROJECT["name"],
        "description": PROJECT["description"],
        "licenses": PROJECT["license"],
    }


def test_its_commands_are_ours_and_run_as_they_stand() -> None:
    (entry,), (usual,) = map(json.loads, told("ENTRYPOINT")), map(json.loads, told("CMD"))
    assert entry == ["hotreload"]
    (health,) = told("HEALTHCHECK")
    program, *words = json.loads(health.partition(" CMD ")[2])
    assert [program] == entry
    build_parser().parse_args(words)
    installed = Path(sys.executable).with_name(*entry)
    command = [installed, *usual, "--help"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "usage: hotreload serve" in said
    assert told("STOPSIGNAL") == ["SIGTERM"]


def test_its_user_is_a_number_and_not_root_and_the_usual_folders_are_his() -> None:
    (user,) = told("USER")
    number, group = user.split(":")
    assert int(number) == int(group) > 0
    made = next(line for line in told("RUN") if "install -d" in line)
    assert f"useradd --uid {number} " in made
    settings = Settings()
    for folder in (settings.server.socket.parent, settings.state.directory, DEFAULT_CONFIG.parent):
        assert str(folder) in made
    assert told("VOLUME") == [json.dumps([str(settings.state.directory)])]
    assert f"HOTRELOAD_CONFIG={DEFAULT_CONFIG}" in told("ENV")[-1]
