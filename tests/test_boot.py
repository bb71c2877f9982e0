"""Which weights an engine is started with; the engine here is a word that says what it got."""

import asyncio
import shutil
import threading
from pathlib import Path

import pytest

from hotreload.boot import first_engine, first_start, models, served_from
from hotreload.checks.check import check_checkpoint
from hotreload.checks.fit import Policy
from hotreload.config import Settings
from hotreload.core.ledger import Ledger
from hotreload.engine.boot import DOES_NOT_START
from hotreload.errors import CheckpointCorrupt, ConfigError
from hotreload.tiny import write_tiny
from hotreload.types import Checkpoint, Generation, Reason, Revision, Served
from tests.fakes import HANG, FakeSource, Steps
from tests.hub.local_hub import REPO, LocalHub, local_hub
from tests.sources.following import checkpoint, hub_source


class Machine:
    """A last good generation, a newer checkpoint, a model; and what each of them does."""

    def __init__(self, folder: Path) -> None:
        self.model = write_tiny(folder / "model", "served by step 0")
        self.settings = Settings.model_validate({"engine": {"model": str(self.model)}})
        self.ledger = Ledger()
        good = Revision("good", "step_1")
        self.ledger.went_live(Generation(1, good, "fp", 0.0), str(folder / "step_1"))
        self.source = FakeSource(Steps(), folder)
        self.source.known["step_2"] = Revision("newer", "step_2")
        self.unfit: set[str] = set()
        self.start_faults: dict[str, ConfigError] = {}
        self.started: list[str] = []

    async def check(self, revision: Revision, path: Path) -> Checkpoint:
        if path.name in self.unfit:
            raise CheckpointCorrupt(f"{path.name} is cut short")
        return Checkpoint(revision, path, (), {}, 1)

    async def start(self, weights: Checkpoint | None) -> str:
        assert weights is not None
        self.started.append(weights.path.name)
        if fault := self.start_faults.get(weights.path.name):
            raise fault
        return f"an engine on {weights.path.name}"

    async def first(self) -> str:
        engine, weights = await first_engine(
            self.settings,
            ledger=self.ledger,
            source=self.source,
            model=self.model,
            check=self.check,
            start=self.start,
        )
        assert weights is not None
        assert engine.endswith(weights.path.name)
        return weights.path.name


def does_not_start() -> ConfigError:
    return ConfigError("upstream: no such layer", code=DOES_NOT_START)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


async def test_the_last_good_generation_comes_first(machine: Machine) -> None:
    assert await machine.first() == "step_1"
    assert machine.started == ["step_1"]


async def test_what_fails_the_checks_never_reaches_the_engine(machine: Machine) -> None:
    machine.unfit = {"step_1"}
    assert await machine.first() == "step_2"
    assert machine.started == ["step_2"]


async def test_what_only_the_engine_finds_fault_with_is_passed_over(machine: Machine) -> None:
    machine.start_faults = {"step_1": does_not_start(), "step_2": does_not_start()}
    assert await machine.first() == "model"
    assert machine.started == ["step_1", "step_2", "model"]


async def test_a_setting_that_cannot_work_is_told_at_once(machine: Machine) -> None:
    machine.start_faults = {"step_1": ConfigError("[engine.args] no such argument")}
    with pytest.raises(ConfigError, match="no such argument"):
        await machine.first()
    assert machine.started == ["step_1"]


async def test_a_model_that_does_not_start_ends_the_start(machine: Machine) -> None:
    machine.unfit = {"step_1", "step_2"}
    machine.start_faults = {"model": does_not_start()}
    with pytest.raises(ConfigError, match="no such layer"):
        await machine.first()


async def test_when_nothing_is_sound_each_candidate_is_named_with_its_fault(
    machine: Machine,
) -> None:
    machine.unfit = {"step_1", "step_2", "model"}
    with pytest.raises(ConfigError, match=r"(?s)step_1 is cut short.*step_2 is.*model is"):
        await machine.first()
    assert machine.started == []


async def test_what_was_damaged_here_is_fetched_again_before_anything_else(
    machine: Machine,
) -> None:
    machine.source.known["step_1"] = Revision("good", "step_1")
    damaged, whole = machine.check, iter([CheckpointCorrupt("step_1: changed"), None])

    async def check(revision: Revision, path: Path) -> Checkpoint:
        if fault := next(whole):
            raise fault
        return await damaged(revision, path)

    machine.check = check  # type: ignore[method-assign]
    assert await machine.first() == "step_1"


async def test_a_source_that_does_not_come_to_an_end_is_given_up(machine: Machine) -> None:
    settings = {"engine": {"model": machine.model}, "reload": {"fetch_timeout": 0.01}}
    machine.settings = Settings.model_validate(settings)
    machine.unfit = {"step_1"}
    machine.source.steps.faults["fetch"] = HANG
    assert await machine.first() == "model"


async def test_a_model_folder_that_hangs_leaves_the_loop_free(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_file, answers = Path.is_file, threading.Event()
    monkeypatch.setattr(Path, "is_file", lambda path: answers.wait(10) and is_file(path))
    reading = asyncio.create_task(served_from(machine.model))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not reading.done()
    answers.set()
    assert (await reading).tensors


# --- a model from a hub --------------------------------------------------------------------


class OnlyHub:
    """A daemon's start that has nothing but a hub; it notes what it is told."""

    def __init__(self, hub: LocalHub, folder: Path, ledger: Ledger) -> None:
        self.settings = Settings.model_validate({"source": {"kind": "huggingface", "repo": REPO}})
        self.ledger = ledger
        self.source = hub_source(
            hub, folder / "cache", kept=lambda: ledger.worth_keeping, poll=0.05
        )
        self.told: list[str] = []
        self.waits = asyncio.Event()

    def serve(self, served: Served) -> None:
        self.served = served

    def tell(self, doing: str) -> None:
        self.told.append(doing)
        if doing == "waiting for a checkpoint that can be served":
            self.waits.set()

    async def check(self, revision: Revision, path: Path) -> Checkpoint:
        content = self.source.content_of(revision)
        policy = Policy()
        return check_checkpoint(
            revision, path, served=self.served, policy=policy, content_id=content
        )

    async def start(self, model: Path, weights: Checkpoint | None) -> str:
        assert weights is not None
        assert weights.path == model
        return weights.revision.id

    async def first(self) -> str:
        started, _ = await first_start(
            self.settings,
            ledger=self.ledger,
            source=self.source,
            serve=self.serve,
            check=self.check,
            start=self.start,
            tell=self.tell,
        )
        return started


def tiny(folder: Path, step: int, damage: str | None = None) -> Path:
    return write_tiny(folder / f"step_{step}", f"served by step {step}", damage=damage)


async def looked_at(hub: LocalHub, times: int) -> None:
    async with asyncio.timeout(10):
        while hub.count("HEAD") < times:  # noqa: ASYNC110 (the hub is a thread of its own)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("bad", ["no config.json", "nan", "truncated", "refused before"])
async def test_without_a_model_a_first_commit_that_will_not_do_is_waited_out(
    tmp_path: Path, bad: str
) -> None:
    with local_hub() as hub:
        damage = bad if bad in ("nan", "truncated") else None
        first = tiny(tmp_path, 1, damage)
        if bad == "no config.json":
            (first / "config.json").unlink()
        sha, ledger = hub.push(first), Ledger()
        if bad == "refused before":
            ledger.refuse(Revision(sha), Reason("probe", "it talked nonsense"), 0.0)
        starting = OnlyHub(hub, tmp_path, ledger)
        running = asyncio.create_task(starting.first())
        if bad == "refused before":
            await looked_at(hub, 3)
        else:
            await asyncio.wait_for(starting.waits.wait(), 10)
        assert not running.done()
        good = hub.push(tiny(tmp_path, 2))
        assert await asyncio.wait_for(running, 10) == good


async def test_without_a_model_a_commit_that_ended_a_process_once_is_tried_again(
    tmp_path: Path,
) -> None:
    with local_hub() as hub:
        sha = hub.push(tiny(tmp_path, 1))
        starting = OnlyHub(hub, tmp_path, Ledger(crashes={sha: 1}))
        assert await starting.first() == sha


async def test_bytes_that_are_not_the_commits_are_never_started(tmp_path: Path) -> None:
    with local_hub() as hub:
        sha, ledger = hub.push(tiny(tmp_path, 1)), Ledger()
        starting = OnlyHub(hub, tmp_path, ledger)
        assert await starting.first() == sha
        folder = await starting.source.fetch(Revision(sha))
        ledger.went_live(Generation(1, Revision(sha), "fp", 0.0), str(folder))
        shutil.copyfile(
            tiny(tmp_path, 2) / "model.safetensors", folder / "model.safetensors"
        )  # whole and sound, but nobody's commit
        hub.fault("*", status=503, times=99)
        again = OnlyHub(hub, tmp_path, ledger)
        running = asyncio.create_task(again.first())
        await asyncio.wait_for(again.waits.wait(), 10)
        assert not running.done()
        running.cancel()


@pytest.mark.parametrize("then", ["another commit", "no hub"])
async def test_a_model_from_a_hub_is_started_with_its_own_weights(
    tmp_path: Path, then: str
) -> None:
    machine = Machine(tmp_path)
    with local_hub() as hub:
        first = hub.push(checkpoint("one"))
        ledger = machine.ledger = Ledger()
        source = hub_source(hub, tmp_path / "cache", kept=lambda: ledger.worth_keeping)
        settings = Settings.model_validate({"source": {"kind": "huggingface", "repo": REPO}})
        machine.model, wish = await anext(models(settings, ledger, source))
        if then == "another commit":
            hub.push(checkpoint("two"))
        else:
            hub.fault("HEAD", status=503, times=9)
        engine, weights = await first_engine(
            settings,
            ledger=ledger,
            source=source,
            model=machine.model,
            check=machine.check,
            start=machine.start,
            first_wish=wish,
        )
    assert engine == f"an engine on {first}"
    assert weights is not None
    assert weights.revision.id == first
    assert machine.model.is_dir()
