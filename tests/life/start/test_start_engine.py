"""What of the settings reaches the engine; the engine here notes what it is given."""

import asyncio
import errno
import os
import threading
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import pytest

from hotreload import threads
from hotreload.checkpoint.check import check_checkpoint
from hotreload.checkpoint.fit import Policy
from hotreload.core.progress import AttemptProgress
from hotreload.engine.capabilities import BatchSize
from hotreload.engine.compile_cache import CompileCache
from hotreload.engine.options import EngineOptions
from hotreload.engine.sglang import SglangEngine
from hotreload.engine.upstream import build, parts
from hotreload.engine.weights.load.first_load import FirstLoad, NotByOurs
from hotreload.engine.weights.load.trust import note, read_mark
from hotreload.errors import CheckpointChanged, ConfigError
from hotreload.events import PhaseEntered, Progress, Publish
from hotreload.life.start import start_engine as starting
from hotreload.life.start.start_engine import TRUST, engine_options, start_engine
from hotreload.settings.load import Settings
from hotreload.settings.tables import read_table
from hotreload.tiny import write_tiny
from hotreload.types import Checkpoint, HowFar, Phase, Revision
from tests.nobody import as_nobody
from tests.waiting import PATIENCE, turn_until


class Started:
    """What starts here: it is neither warmed nor asked anything."""

    is_kept_to_compiled = False

    @property
    def ahead(self) -> Self:
        return self

    def keep_to_compiled(self, is_kept: bool) -> None:
        self.is_kept_to_compiled = is_kept

    def sizes_to_compile(self, most: int, longest: int) -> list[BatchSize]:
        """It must be asked, for which nobody wishes here."""
        return []


def served(folder: Path) -> tuple[Path, Checkpoint]:
    model = write_tiny(folder / "model", "served by step 1")
    return model, check_checkpoint(Revision("1"), model, served=None, policy=Policy())


def begun(publish: Publish = lambda event: None) -> AttemptProgress:
    return AttemptProgress(Revision("1"), publish)


def settings_with(state: Path, model: Path) -> Settings:
    given = {"engine": {"model": str(model), "warm_batches": 0}, "state": {"directory": str(state)}}
    return read_table(Settings, given)


async def test_a_file_of_the_model_that_may_not_be_read_is_a_setting_that_names_it(
    tmp_path: Path,
) -> None:
    model, weights = served(tmp_path)
    (tmp_path / "state").mkdir(mode=0o777)
    (tmp_path / "state").chmod(0o777)
    closed = model / "tokenizer.json"
    closed.chmod(0o000)
    with as_nobody(model), pytest.raises(ConfigError, match=rf"{closed} may not be read"):
        await start_engine(settings_with(tmp_path / "state", model), model, weights, begun())


async def test_a_disk_that_fills_up_with_the_models_files_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(model: Path, to: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    model, weights = served(tmp_path)
    monkeypatch.setattr("hotreload.life.start.model_files.copy_side_files", full)
    with pytest.raises(ConfigError, match="cannot be written: No space left"):
        await start_engine(settings_with(tmp_path / "state", model), model, weights, begun())


async def test_each_setting_of_the_engine_reaches_it(tmp_path: Path) -> None:
    given: dict[str, Any] = {}

    async def make(options: EngineOptions, **more: Any) -> Any:
        given.update(more, **asdict(options))
        return Started()

    engine = {"device": "cpu", "tp": 2, "dtype": "float32", "args": {"max_total_tokens": 64}}
    settings = read_table(
        Settings,
        {
            "engine": {"model": str(tmp_path), "warm_batches": 0, **engine},
            "checks": {"max_drift": 7.0},
            "reload": {"memory": "auto"},
            "server": {"tool_call_parser": "mimo"},
            "probe": [{"prompt": "Who?", "contains": "me"}],
            "state": {"directory": str(tmp_path / "state")},
        },
    )
    started: Any = await start_engine(settings, tmp_path, None, begun(), make)
    assert started.is_kept_to_compiled  # until `compile_behind` ends
    assert given.items() >= asdict(settings.engine).items()  # all that the table has, once
    assert given.items() >= engine.items()
    assert (given["terms"].max_drift, given["terms"].memory) == (7.0, "auto")
    assert [(probe.prompt, probe.contains) for probe in given["probes"]] == [("Who?", "me")]
    assert given["terms"].spool == tmp_path / "state" / "staging"
    assert (given["model"], given["load_format"]) == (tmp_path, "dummy")
    assert given["tool_call_parser"] == "mimo"


@pytest.mark.parametrize(
    ("chosen", "told_to_jax", "kept"),
    [
        (None, "", CompileCache(Path("/state/compiled"), is_default=True)),
        ("off", "", None),
        ("/far/away", "", CompileCache(Path("/far/away"))),
        (None, "/by/jax", None),
        ("/far/away", "/by/jax", None),
    ],
)
def test_programs_are_kept_unless_jax_was_told_where(
    chosen: str | None, told_to_jax: str, kept: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", told_to_jax)
    engine = {"compile_cache": chosen} if chosen else {}
    settings = read_table(Settings, {"engine": engine, "state": {"directory": "/state"}})
    assert engine_options(settings, Path("/model")).programs == kept


async def test_a_start_tells_how_much_is_copied_and_that_the_engine_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Minutes of a large model, in which nobody knew whether anything went on."""
    told: list[Any] = []
    model, weights = served(tmp_path)
    size = sum(file.size for file in weights.weight_files)
    was_told = threading.Event()

    def note(event: Any) -> None:
        told.append(event)
        if isinstance(event, Progress) and event.done == size:
            was_told.set()

    def assembled(model: Path, to: Path) -> None:
        assert was_told.wait(PATIENCE)

    async def start(**more: Any) -> Started:
        return Started()

    monkeypatch.setattr(SglangEngine, "start", start)
    monkeypatch.setattr("hotreload.life.start.model_files.copy_side_files", assembled)
    await start_engine(settings_with(tmp_path / "state", model), model, weights, begun(note))
    phases = [each.phase for each in told if isinstance(each, PhaseEntered)]
    assert phases == [Phase.STAGING, Phase.BUILDING]
    assert [each for each in told if isinstance(each, Progress)][-1].total == size


class Copies:
    """Stands for `SglangEngine.start`: notes what lies in the folder that it is given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *faults: Exception) -> None:
        self.found: list[tuple[bool, object]] = []
        self.told: list[Any] = []
        self._faults = list(faults)
        monkeypatch.setattr(SglangEngine, "start", self._start)

    async def _start(
        self,
        options: EngineOptions,
        checkpoint: Checkpoint | None = None,
        filling: FirstLoad | None = None,
        **more: Any,
    ) -> Started:
        assert (options.model / "config.json").is_file()
        has_weights = any(options.model.glob("*.safetensors"))
        self.found.append((has_weights, filling and (filling.mark, filling.checkpoint)))
        assert (checkpoint is None) == (filling is not None)
        if self._faults:
            raise self._faults.pop(0)
        if filling is not None:
            filling.so_far = HowFar(1, 2)
            told = Progress(filling.checkpoint.revision, Phase.BUILDING, 1, 2)
            await turn_until(lambda: told in self.told)
        return Started()


async def test_where_our_own_loader_is_trusted_no_weights_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model, weights), copies = served(tmp_path), Copies(monkeypatch)
    settings = settings_with(tmp_path / "state", model)
    await start_engine(settings, model, weights, begun())
    (tmp_path / "state" / TRUST).write_text("as it was")
    await start_engine(settings, model, weights, begun(copies.told.append))
    assert copies.found == [(True, None), (False, ("as it was", weights))]
    engine = replace(settings.engine, loader="upstream")
    upstreams = replace(settings, engine=engine)
    await start_engine(upstreams, model, weights, begun())
    assert copies.found[2:] == [(True, None)]


@pytest.mark.parametrize(
    "fault", [NotByOurs("it is fp8"), ConfigError("no weights", code=build.DOES_NOT_START)]
)
async def test_where_it_cannot_load_upstreams_does_and_no_later_start_tries_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    (model, weights), copies = served(tmp_path), Copies(monkeypatch, fault)
    trust = tmp_path / "state" / TRUST
    trust.parent.mkdir()
    trust.write_text("as it was")
    settings = settings_with(trust.parent, model)
    await start_engine(settings, model, weights, begun())
    assert copies.found == [(False, ("as it was", weights)), (True, None)]
    note(trust, "as it was")  # it was compared once more
    await start_engine(settings, model, weights, begun())
    assert copies.found[2:] == [(True, None)]
    note(trust, "another model")
    assert read_mark(trust) == "another model"


@pytest.mark.parametrize("fault", [CheckpointChanged("a.safetensors"), ConfigError("no tokenizer")])
async def test_what_is_wrong_with_files_or_settings_is_not_tried_by_another_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    (model, weights), copies = served(tmp_path), Copies(monkeypatch, fault)
    trust = tmp_path / "state" / TRUST
    trust.parent.mkdir()
    trust.write_text("as it was")
    with pytest.raises(type(fault), match=str(fault)):
        await start_engine(settings_with(trust.parent, model), model, weights, begun())
    assert len(copies.found) == 1
    assert trust.exists()
    assert not any((trust.parent / "boot").iterdir())


async def test_no_stop_waits_for_an_engine_that_takes_long_to_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    building, may_end, freed = threading.Event(), threading.Event(), threading.Event()

    def compiles(*asked: Any) -> None:
        building.set()
        may_end.wait()

    monkeypatch.setattr(build, "build", compiles)
    monkeypatch.setattr(parts, "discard", lambda parts: freed.set())
    monkeypatch.setattr(threads, "LEAVE_AFTER", 0.0)
    model, weights = served(tmp_path)
    settings = settings_with(tmp_path / "state", model)
    starting = asyncio.create_task(start_engine(settings, model, weights, begun()))
    try:
        await turn_until(building.is_set)
        starting.cancel()
        await asyncio.wait({starting})
        assert starting.cancelled()
        assert not freed.is_set()
    finally:
        may_end.set()
    await turn_until(freed.is_set)


async def test_sglang_jax_is_imported_while_a_start_reads_and_checks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    importing, checked = threading.Event(), threading.Event()

    def import_upstream() -> None:
        importing.set()
        assert checked.wait(PATIENCE)
        raise ConfigError("sglang-jax is not installed")  # the start says so itself

    monkeypatch.setattr(starting, "import_upstream", import_upstream)
    async with starting.import_in_background():
        await turn_until(importing.is_set)
        checked.set()
