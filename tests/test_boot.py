"""Which weights an engine is started with; the engine here is a word that says what it got."""

from pathlib import Path

import pytest

from hotreload.boot import first_engine, model_folder
from hotreload.config import Settings
from hotreload.core.ledger import Ledger
from hotreload.engine.boot import DOES_NOT_START
from hotreload.errors import CheckpointCorrupt, ConfigError
from hotreload.tiny import write_tiny
from hotreload.types import Checkpoint, Generation, Revision
from tests.fakes import FakeSource, Steps
from tests.hub.local_hub import REPO, local_hub
from tests.sources.following import checkpoint, hub_source


class Machine:
    """A last good generation, a newer checkpoint, a model; and what each of them does."""

    def __init__(self, folder: Path) -> None:
        self.model = write_tiny(folder / "model", "served by step 0")
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
            "last-good",
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
        machine.model, wish = await model_folder(settings, ledger, source)
        if then == "another commit":
            hub.push(checkpoint("two"))
        else:
            hub.fault("HEAD", status=503, times=9)
        engine, weights = await first_engine(
            "last-good",
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
