"""Ways to be told something by hotreload, without an engine: each gives the words for one input."""

import contextlib
import io
import json
import os
import shutil
import zipfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from hotreload.cli import main
from hotreload.cli.client.texts import status_text
from hotreload.core.progress import AttemptProgress
from hotreload.engine.answering.requests import parse
from hotreload.engine.capabilities import Capabilities, EngineLimits
from hotreload.engine.model_folder import unservable
from hotreload.engine.options import EngineOptions
from hotreload.engine.sglang import SglangEngine
from hotreload.engine.upstream.build import DOES_NOT_START
from hotreload.errors import BadRequest, ConfigError
from hotreload.life.start.start_engine import start_engine
from hotreload.settings.load import Settings
from hotreload.settings.tables import read_table
from hotreload.tiny import write_tiny
from tests.engine.real import checked
from tests.server.world import World, serve
from tests.sources.watching import watching, write

Told = Callable[[Path], Awaitable[str]]
"""Gives the words that somebody is told; it may write into the folder."""
Change = Callable[[Path], object]
"""What is done to a sound checkpoint before it is looked at."""

POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
LIMITS = EngineLimits(vocabulary=128, input_tokens=20, total_tokens=32)
CAN = Capabilities(
    logprobs=False,
    grammars=False,
    seeds=False,
    sampling=frozenset({"temperature", "max_new_tokens", "stop", "top_p"}),
)


def command(*words: str, **environ: str) -> Told:
    """What `hotreload` prints, and with which code it exits; `DIR` in a word is the folder."""

    async def told(folder: Path) -> str:
        return run(*(word.replace("DIR", str(folder)) for word in words), environ=environ)

    return told


def run(*words: str, environ: Mapping[str, str] | None = None) -> str:
    """Run a verb in this process, with nothing of hotreload's in its environment."""
    kept = {name: value for name, value in os.environ.items() if "HOTRELOAD" not in name}
    out, width = io.StringIO(), {"COLUMNS": "80"}
    with contextlib.ExitStack() as around:
        around.enter_context(
            patch.dict(os.environ, {**kept, **width, **(environ or {})}, clear=True)
        )
        around.enter_context(contextlib.redirect_stdout(out))
        around.enter_context(contextlib.redirect_stderr(out))
        try:
            code = main(words)
        except SystemExit as end:
            code = int(end.code or 0)
    return f"{out.getvalue()}exit {code}"


def config(text: str | bytes, *sets: str, **environ: str) -> Told:
    """What `check-config` says of a file with this text."""

    async def told(folder: Path) -> str:
        file = folder / "hotreload.toml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        options = [word for each in sets for word in ("--set", each)]
        return run("check-config", str(file), *options, environ=environ)

    return told


def check(change: Change, name: str = "step_2") -> Told:
    """What `check` says of a checkpoint to which this was done, or of a file beside it."""

    async def told(folder: Path) -> str:
        change(write_tiny(folder / "step_2"))
        return run("check", str(folder / name))

    return told


def holding(file: str, content: str | bytes) -> Change:
    """This file has this content, whatever it had before."""

    def change(folder: Path) -> None:
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def renamed(before: str, after: str) -> Change:
    """This file has another name."""
    return lambda folder: (folder / before).rename(folder / after)


def zipped(folder: Path) -> None:
    """The weights are an archive, as torch.save makes one."""
    with zipfile.ZipFile(folder / "model.safetensors", "w") as archive:
        archive.writestr("model/data.pkl", "x" * 100)


def archived(folder: Path) -> None:
    """The whole checkpoint is an archive beside the folder."""
    shutil.make_archive(str(folder), "zip", folder)


def stating(**fields: Any) -> Change:
    """The config.json has these fields."""

    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))

    return change


def without(pattern: str) -> Change:
    """It has no such files."""

    def change(folder: Path) -> None:
        for file in folder.glob(pattern):
            file.unlink()

    return change


def doctor(change: Change, *sets: str) -> Told:
    """What `doctor` says on a machine whose model had this done to it."""

    async def told(folder: Path) -> str:
        model, source = write_tiny(folder / "model"), folder / "checkpoints"
        source.mkdir()
        change(model)
        named = [f"engine.model={model}", f"source.path={source}", f"server.socket={folder / 's'}"]
        named += [f"state.directory={folder / 'state'}", *sets]
        return run("doctor", *(word for each in named for word in ("--set", each)))

    return told


def started(change: Change) -> Told:
    """What a start says whose engine complains of a model to which this was done.

    The engine here complains in the words that the real one does.
    """

    async def told(folder: Path) -> str:
        model = write_tiny(folder / "model")
        weights = checked(model)
        change(model)
        given = {"engine": {"model": str(model)}, "state": {"directory": str(folder / "state")}}
        progress = AttemptProgress(weights.revision, lambda event: None)
        with patch.object(SglangEngine, "start", _complains), pytest.raises(ConfigError) as caught:
            await start_engine(read_table(Settings, given), model, weights, progress)
        return str(caught.value)

    return told


async def _complains(*, options: EngineOptions, **given: Any) -> None:
    model = options.model
    why = unservable(model) or f"OSError: {model}/params.json"
    raise ConfigError(f"the engine does not start on {model}: {why}", code=DOES_NOT_START)


def asked(**request: Any) -> Told:
    """What is said of a request in the engine's schema."""

    async def told(folder: Path) -> str:
        with pytest.raises(BadRequest) as caught:
            parse(request, limits=LIMITS, can=CAN, encode=lambda text: [*text.encode()], chat=_chat)
        return str(caught.value)

    return told


def _chat(messages: object, arguments: object, tools: object) -> list[int]:
    return [1]


def posted(route: str, **body: Any) -> Told:
    """What the server answers to this body."""

    async def told(folder: Path) -> str:
        async with serve(folder) as world, world.client() as client:
            return str((await client.post(route, json=body)).text)

    return told


def passed_over(change: Change, **settings: Any) -> Told:
    """What is told of the folder that was meant and is passed over; step_1 is sound."""

    async def told(folder: Path) -> str:
        root = folder / "root"
        written = write(root / "step_1") / "model.safetensors"
        os.utime(written, (1e9, 1e9))
        change(root)
        given = {"settle": 0.01, "patience": 0.05, "rescan": 0.05, **settings}
        async with watching(root, **given) as watch:
            await watch.until(lambda: bool(watch.passed_over_words))
            return "; ".join(watch.passed_over_words)

    return told


def with_folder(name: str, *files: str) -> Change:
    """There is a folder of this name, with such files."""

    def change(root: Path) -> None:
        (root / name).mkdir()
        for file in files:
            (root / name / file).write_text(file)

    return change


def status(change: Callable[[World], object]) -> Told:
    """What `status` says of a daemon to which this happened."""

    async def told(folder: Path) -> str:
        async with serve(folder) as world, world.client() as client:
            change(world)
            return status_text((await client.get("/status")).json())

    return told


async def refused(about: Callable[[], Awaitable[object]]) -> str:
    """The words of the ConfigError that ends this."""
    with pytest.raises(ConfigError) as caught:
        await about()
    return str(caught.value)
