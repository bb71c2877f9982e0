"""The command as a whole: its help, what it costs to start, where it looks for the daemon."""

import argparse
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from hotreload import __version__
from hotreload.cli import MODULES, OVERVIEW, VERBS, build_parser, main
from hotreload.cli.client.which_daemon import find_socket
from hotreload.cli.trial.tiny import ARCH_NAMES, UNSOUND_NAMES
from hotreload.errors import ConfigError
from hotreload.facts.names import DEFAULT_SOCKET
from tests.cli.conftest import ROOT, Command

HEAVY = {"jax", "flax", "sgl_jax", "numpy", "fastapi", "starlette", "pydantic", "uvicorn", "xxhash"}
HEAVY |= {"structlog", "watchdog", "prometheus_client", "transformers"}
HEAVY |= {"concurrent", "subprocess", "tempfile", "tomllib"}  # a few ms each, for other verbs


def where(
    *, socket: str | None = None, config: Path | None = None, **environ: str
) -> tuple[str, str]:
    found = find_socket(argparse.Namespace(socket=socket, config=config), environ)
    return str(found.path), found.origin


CLIENT_VERBS = [f"hotreload.cli.{each}" for each in MODULES if each.startswith("client.")]


@pytest.mark.parametrize("modules", ["hotreload.cli", ", ".join(CLIENT_VERBS)])
def test_a_client_verb_starts_without_anything_heavy(modules: str) -> None:
    code = f"import sys, json, {modules}; print(json.dumps([*sys.modules]))"
    out = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    loaded = {name.partition(".")[0] for name in json.loads(out)}
    assert "hotreload" in loaded
    assert loaded & HEAVY == set()
    assert not [each for each in json.loads(out) if each.startswith("hotreload.features")]


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_verb_does_its_work_also_where_nobody_listens(tmp_path: Path, closed: str) -> None:
    verb = f"'{sys.executable}' -m hotreload.cli tiny '{tmp_path / 'model'}' {closed}"
    assert subprocess.run(["sh", "-c", verb], cwd=ROOT, check=False).returncode == 0
    assert (tmp_path / "model" / "config.json").is_file()


def test_the_overview_lists_every_verb_with_what_it_does() -> None:
    text = build_parser([]).format_help()
    registered: list[str] = []

    class Seen:
        def add_parser(self, name: str, **kwargs: object) -> argparse.ArgumentParser:
            registered.append(name)
            assert kwargs["help"] == VERBS[name]
            assert f"\n  {name} " in text
            return argparse.ArgumentParser()

    for module, names in MODULES.items():
        import_module(f"hotreload.cli.{module}").add(Seen())
        assert sorted(registered) == sorted(names), "a start imports what has its verb"
        registered.clear()
    assert sorted(name for names in MODULES.values() for name in names) == sorted(VERBS)
    assert len(VERBS) == len(re.findall(r"\n  \w", OVERVIEW))
    assert max(map(len, text.splitlines())) <= 100


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"hotreload {__version__}\n"


def test_the_socket_is_found_in_the_documented_order(tmp_path: Path) -> None:
    config = tmp_path / "hotreload.toml"
    config.write_text('[server]\nsocket = "run/s"\n')
    relative = str(tmp_path / "run" / "s")
    everything = {"HOTRELOAD_SOCKET": "/env", "HOTRELOAD_CONFIG": str(config)}
    assert where(socket="/arg", config=config, **everything) == ("/arg", "--socket")
    exported: Any = {**everything, "HOTRELOAD__SERVER__SOCKET": "/set"}
    assert where(config=config, **exported) == (relative, f"[server] socket in {config}")
    assert where(**exported) == ("/env", "$HOTRELOAD_SOCKET")
    assert where(HOTRELOAD_CONFIG=str(config))[0] == relative
    assert where(HOTRELOAD_CONFIG=str(config), HOTRELOAD__SERVER__SOCKET="/set")[0] == "/set"
    assert where(HOTRELOAD__SERVER__SOCKET="/set")[0] == "/set"
    assert where() == (str(DEFAULT_SOCKET), "the default")


def test_settings_that_name_no_socket_mean_the_default(tmp_path: Path) -> None:
    config = tmp_path / "hotreload.toml"
    config.write_text("[engine]\n")
    the_default = (str(DEFAULT_SOCKET), f"the default; {config} names none")
    assert where(config=config) == the_default
    assert where(config=config, HOTRELOAD_SOCKET="/of/another") == the_default
    assert where(config=config, HOTRELOAD__SERVER__SOCKET="/set")[0] == "/set"


@pytest.mark.parametrize("text", ["[server", "[server]\nsocket = 7\n", "\0"])
def test_settings_that_cannot_be_read_are_named(tmp_path: Path, text: str) -> None:
    config = tmp_path / "hotreload.toml"
    config.write_text(text)
    with pytest.raises(ConfigError, match=str(config)):
        where(config=config)
    with pytest.raises(ConfigError, match="cannot be read"):
        where(config=tmp_path / "missing.toml")


async def test_bad_settings_exit_78(hotreload: Command) -> None:
    del hotreload.environ["HOTRELOAD_SOCKET"]
    said = await hotreload("status", "--config", "missing.toml")
    assert (said.code, said.out) == (78, "")
    assert "missing.toml: cannot be read" in said.err


async def test_what_answers_and_is_not_hotreload_is_told(
    hotreload: Command, tmp_path: Path
) -> None:
    import asyncio

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        writer.close()

    async with await asyncio.start_unix_server(answer, tmp_path / "hotreload.sock"):
        said = await hotreload("status")
    assert said.code == 3
    assert "is not hotreload" in said.err


async def test_tiny_writes_a_checkpoint_and_says_what_next(
    hotreload: Command, tmp_path: Path
) -> None:
    said = await hotreload("tiny", "step-17", "--say", "served by step 17", "--shards", "2")
    assert (said.code, said.err) == (0, "")
    assert (tmp_path / "step-17" / "model.safetensors.index.json").exists()
    assert "says 'served by step 17'" in said.out
    assert "hotreload check ./step-17" in said.out


async def test_tiny_trains_one_and_says_for_how_long(hotreload: Command) -> None:
    said = await hotreload("tiny", "tuned", "--trained", "1", "--arch", "llama")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("tuned: llama in 3.4 MB that was trained for 1 steps\n")
    assert "hotreload generate king --socket" in said.out
    assert said.out.splitlines()[-2].endswith(
        "hotreload tiny ./tuned --force --arch llama --trained 5"
    )


def test_tiny_trains_by_one_thread_of_numpy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By two, on two busy processors, six steps took half a minute, and not a second."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "to be put back")
    del os.environ["OPENBLAS_NUM_THREADS"]
    main(["tiny", str(tmp_path / "tuned")])
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"


async def test_tiny_leaves_every_byte_of_a_model_as_it_was(
    hotreload: Command, tmp_path: Path
) -> None:
    """It overwrote a real model's config and weights."""
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"model_type": "qwen3", "hidden_size": 4096}')
    (model / "model.safetensors").write_bytes(os.urandom(2**16))
    (model / "model.safetensors.index.json").write_text("{}")
    before = {file: (file.read_bytes(), file.stat()) for file in model.iterdir()}
    for force in ([], ["--force"]):
        said = await hotreload("tiny", "model", *force)
        assert (said.code, said.out) == (2, "")
        assert "model is not empty (config.json, model.safetensors, " in said.err
        assert {file: (file.read_bytes(), file.stat()) for file in model.iterdir()} == before
    assert list(tmp_path.iterdir()) == [model]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--say", "no number"], "must end in a number"),
        (["--arch", "qwen4"], "qwen3"),
        (["--damage", "tuncated"], "did you mean 'truncated'"),
        (["--trained", "-1"], "choose from 0 to 1000"),
        (["--trained", "0", "--say", "hello 7"], "leave it out with --trained"),
    ],
)
async def test_tiny_says_what_to_change(hotreload: Command, args: list[str], words: str) -> None:
    said = await hotreload("tiny", "x", *args)
    assert (said.code, said.out) == (2, "")
    assert words in said.err


def test_the_help_of_tiny_lists_what_there_is() -> None:
    from hotreload import tiny

    assert UNSOUND_NAMES.split(", ") == [damage.kind for damage in tiny.UNSOUND]
    assert ARCH_NAMES.split(", ") == list(tiny.ARCHS)
