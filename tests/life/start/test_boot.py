"""Which weights an engine is started with; the engine here is a word that says what it got."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotreload.attempts import Attempt
from hotreload.checkpoint.check import check_checkpoint
from hotreload.checkpoint.fit import Policy
from hotreload.core.attempt_records import Attempts
from hotreload.core.decision import list_worth_keeping
from hotreload.core.ledger import Ledger, ServedBy
from hotreload.core.progress import AttemptProgress
from hotreload.engine.upstream.build import DOES_NOT_START
from hotreload.errors import (
    CheckpointCorrupt,
    CheckpointIncompatible,
    ConfigError,
    EngineLost,
    ProbeFailed,
)
from hotreload.events import (
    AttemptFinished,
    Event,
    PhaseEntered,
    TroubleNews,
    Wait,
    Warmup,
)
from hotreload.life.running_engine import RunningEngine
from hotreload.life.saved.state_json import from_json, to_json
from hotreload.life.start import boot, first_switch, whereabouts
from hotreload.life.start.boot import Start
from hotreload.life.start.first_switch import FirstSwitch
from hotreload.life.start.model_files import UNFIT_MODEL, find_served_model, keep_model
from hotreload.life.start.start_troubles import Doubt, Gone
from hotreload.settings.load import Settings
from hotreload.settings.tables import read_table
from hotreload.tiny import write_tiny
from hotreload.troubles import OLDER_ANSWERS, PROBE_DOUBTED, WAITS_FOR_FILES
from hotreload.types import Checkpoint, Generation, Outcome, Phase, Reason, Revision, Served
from tests.fakes import HANG, FakeEngine, FakeSource, Steps, unread
from tests.hub.local_hub import REPO, LocalHub, local_hub
from tests.nobody import as_nobody
from tests.sources.following import checkpoint, hub_source
from tests.waiting import PATIENCE, turn_until

GOOD = Revision("good", "step_1")
ENGINE = ServedBy("0.0.2", "0.8.3", "auto", 1, "args", "files", "/srv/model")


class Starting:
    """A start whose checks, engine and gate are a few words; it notes what it was told."""

    def __init__(self, settings: Settings, ledger: Ledger, source: Any) -> None:
        self.settings = settings
        self.ledger = ledger
        self.source = source
        self.events: list[Event] = []
        self.saved: list[bytes] = []
        self.started: list[str] = []
        self.models: list[Path] = []
        self.start_faults: dict[str, Exception] = {}
        self.steps = Steps()
        self.answers: Generation | None = None
        self.serves: RunningEngine | None = None
        self.served = Served({}, {}, {})
        self.engine_now = ENGINE
        self.doubt = Doubt(self.note)

    def serve(self, served: Served) -> None:
        self.served = served

    async def check(self, revision: Revision, path: Path) -> Checkpoint:
        return unread(revision, path)

    async def start_engine(
        self, model: Path, weights: Checkpoint | None, progress: AttemptProgress
    ) -> FakeEngine:
        assert weights is not None
        self.models.append(model)
        self.started.append(weights.path.name)
        if fault := self.start_faults.get(weights.path.name):
            raise fault
        async with progress.phase(Phase.BUILDING):
            return FakeEngine(self.steps, weights.revision)

    async def served_by(self, model: Path) -> ServedBy:
        return self.engine_now

    def go_live(self, engine: RunningEngine, live: Generation) -> None:
        self.serves, self.answers = engine, live

    def note(self, event: Event) -> None:
        self.events.append(event)
        self.doubt.observe(event)

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """What began answers now, and what it is owed is asked of it."""
        replicas: Any = [SimpleNamespace(engine=self.serves)]
        asking = asyncio.create_task(self.doubt.run(replicas, lambda: 0.05))
        self.doubt.observe(Warmup(0, 0, 0, is_over=True))
        try:
            yield
        finally:
            asking.cancel()

    async def save(self, ledger: Ledger) -> None:
        self.saved.append(to_json(ledger))

    def trouble(self, code: str) -> str | None:
        """What is said of a trouble now."""
        told = [e for e in self.events if isinstance(e, TroubleNews) and e.code == code]
        return told[-1].message if told else None

    async def has_told(self, code: str) -> str:
        await turn_until(lambda: self.trouble(code) is not None, pause=0.01)
        return str(self.trouble(code))

    @property
    def attempts(self) -> list[Attempt]:
        return [event.attempt for event in self.events if isinstance(event, AttemptFinished)]

    async def run(self) -> Generation:
        attempts = Attempts(
            self.ledger,
            write=self.save,
            publish=self.note,
            is_lost=lambda: False,
            backoff=lambda failures: 0.01,
        )
        switch = FirstSwitch(
            attempts,
            start_engine=self.start_engine,
            go_live=self.go_live,
            served_by=self.served_by,
            doubt=self.doubt,
        )
        start = Start(
            self.settings,
            attempts=attempts,
            source=self.source,
            validate=self.check,
            serve=self.serve,
            switch=switch,
            gone=Gone(self.note),
        )
        await start.run()
        assert self.answers is not None
        return self.answers


def weights(folder: Path, content: str = "") -> Path:
    """A folder with weights, as a look at names and sizes sees it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_text(content)
    return folder


class Machine(Starting):
    """A last good generation, a newer checkpoint, a model; and what each of them does."""

    def __init__(self, folder: Path) -> None:
        self.model = write_tiny(folder / "model", "served by step 0")
        ledger = Ledger()
        weights(folder / "step_1")
        ledger.went_live(Generation(1, GOOD, "fp", 0.0), str(folder / "step_1"))
        ledger.live = None  # of an earlier life
        source = FakeSource(Steps(), folder)
        source.known["step_2"] = Revision("newer", "step_2")
        settings = read_table(Settings, {"engine": {"model": str(self.model)}})
        super().__init__(settings, ledger, source)
        self.unfit: set[str] = set()

    async def check(self, revision: Revision, path: Path) -> Checkpoint:
        if path.name in self.unfit:
            raise CheckpointCorrupt(f"{path.name} is cut short")
        return await super().check(revision, path)

    def forget(self) -> None:
        """Be a machine on which nothing was live yet."""
        self.ledger = Ledger()

    async def first(self) -> str:
        await self.run()
        return self.started[-1]


def does_not_start() -> ConfigError:
    return ConfigError("upstream: no such layer", code=DOES_NOT_START)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr(boot, "AWAITED_FILES_SECONDS", 0.01)
    return Machine(tmp_path)


async def test_the_last_good_generation_comes_first(machine: Machine) -> None:
    assert await machine.first() == "step_1"
    assert machine.started == ["step_1"]


@pytest.mark.parametrize("is_newest", [True, False], ids=["its number", "a new number"])
async def test_weights_come_back_with_the_version_that_their_trainer_gave_them(
    machine: Machine, is_newest: bool
) -> None:
    live = Generation(3, GOOD, "fp-good", 0.0, version="run/7")
    machine.ledger.went_live(live, str(machine.source.folder / GOOD.label))
    machine.ledger.numbers_given = 3 if is_newest else 5
    back = await machine.run()
    assert (back.number, back.weight_version) == (3 if is_newest else 6, "run/7")
    assert machine.attempts[-1].generation == back.number
    assert [each.version for each in machine.ledger.generations][-1] == "run/7"


async def test_other_bytes_under_a_known_name_are_not_what_the_trainer_named(
    machine: Machine,
) -> None:
    live = Generation(3, GOOD, "others", 0.0, version="run/7")
    machine.ledger.went_live(live, str(machine.source.folder / GOOD.label))
    assert (await machine.run()).weight_version == "4"


async def test_what_fails_the_checks_never_reaches_the_engine(machine: Machine) -> None:
    machine.unfit = {"step_1"}
    assert await machine.first() == "step_2"
    assert machine.started == ["step_2"]


async def test_what_only_the_engine_finds_fault_with_is_passed_over(machine: Machine) -> None:
    machine.forget()
    machine.start_faults = {"step_2": does_not_start()}
    assert await machine.first() == "model"
    assert machine.started == ["step_2", "model"]


async def test_an_earlier_generation_comes_before_the_bare_model(
    machine: Machine, tmp_path: Path
) -> None:
    """Deleted by a trainer's rotation while the newest was refused: the untuned model answered."""
    for number, name in enumerate(("step_3", "step_4"), start=2):
        weights(tmp_path / name)
        generation = Generation(number, Revision(name, name), "fp", 0.0)
        machine.ledger.went_live(generation, str(tmp_path / name))
    machine.ledger.refuse(machine.source.known["step_2"], Reason("probe", "bad"), 0.0)
    shutil.rmtree(tmp_path / "step_4")
    assert await machine.first() == "step_3"


@pytest.mark.parametrize("fails", ["check", "resolve"])
async def test_a_fault_of_ours_passes_over_the_candidate_and_is_logged_with_its_traceback(
    machine: Machine, fails: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machine.forget()
    sound = machine.check

    async def fail(*args: Any) -> Any:
        if args[-1] == machine.model:
            return await sound(*args)
        raise TypeError("'int' object is not iterable")

    monkeypatch.setattr(machine if fails == "check" else machine.source, fails, fail)
    assert await machine.first() == "model"
    named = {"check": "reload.internal_error", "resolve": "boot.internal_error"}[fails]
    (record,) = [each for each in caplog.records if each.message == named]
    assert record.exc_info is not None
    assert "'int' object is not iterable" in caplog.text


@pytest.mark.parametrize(
    ("closed", "told"),
    [
        ("above/model", "{} is closed to this user"),
        ("above", "{} is closed to this user"),
        ("above/model/config.json", "config.json: cannot be read: Permission denied"),
    ],
)
async def test_a_model_that_may_not_be_read_is_a_setting_and_names_what_is_closed(
    tmp_path: Path, closed: str, told: str
) -> None:
    model = write_tiny(tmp_path / "above" / "model", "served by step 0")
    link = tmp_path / "link"
    link.symlink_to(model)
    shut = tmp_path / closed
    shut.chmod(0o000)
    try:
        with as_nobody(model.parent), pytest.raises(ConfigError) as caught:
            await find_served_model(link)
    finally:
        shut.chmod(0o755)
    assert told.format(shut) in str(caught.value)
    assert caught.value.code == UNFIT_MODEL


async def test_a_last_good_folder_that_is_closed_is_fetched_anew(tmp_path: Path) -> None:
    shut = write_tiny(tmp_path / "shut" / "step_1", "served by step 1").parent
    machine = Machine(tmp_path / "open")
    machine.ledger = Ledger()
    machine.ledger.went_live(Generation(1, GOOD, "fp", 0.0), str(shut / "step_1"))
    machine.source.known["again"] = GOOD
    shut.chmod(0o000)
    try:
        with as_nobody(machine.model.parent):
            await machine.run()
    finally:
        shut.chmod(0o755)
    assert machine.answers is not None
    assert machine.answers.revision == GOOD
    assert machine.ledger.last_good is not None
    assert machine.ledger.last_good.path != str(shut / "step_1")


@pytest.mark.parametrize(("pinned", "told"), [(True, 1), (False, 0)])
async def test_a_start_that_cannot_bring_back_what_was_pinned_says_so(
    machine: Machine, caplog: pytest.LogCaptureFixture, pinned: bool, told: int
) -> None:
    machine.ledger.pinned = pinned
    machine.unfit = {"step_1"}
    live = await machine.run()
    lines = [line for line in caplog.records if line.message == "boot.pin_not_restored"]
    assert len(lines) == told
    assert live.number == 2
    for line in lines:
        assert "generation 1, step_1" in vars(line)["why"]
        assert "step_2" in vars(line)["answers"]


async def test_a_fault_of_ours_at_the_model_itself_names_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: Path) -> Served:
        raise TypeError("'int' object is not iterable")

    monkeypatch.setattr("hotreload.life.start.model_files.fit.read_served_model", fail)
    with pytest.raises(ConfigError, match=r"model cannot be served: internal error.*TypeError"):
        await find_served_model(machine.model)


async def test_a_setting_that_cannot_work_is_told_at_once(machine: Machine) -> None:
    machine.start_faults = {"step_1": ConfigError("[engine.args] no such argument")}
    with pytest.raises(ConfigError, match="no such argument"):
        await machine.first()
    assert machine.started == ["step_1"]


async def test_a_model_that_does_not_start_ends_the_start(machine: Machine) -> None:
    machine.forget()
    machine.unfit = {"step_2"}
    machine.start_faults = {"model": does_not_start()}
    with pytest.raises(ConfigError, match="no such layer"):
        await machine.first()


async def test_when_nothing_is_sound_each_candidate_is_named_with_its_fault(
    machine: Machine,
) -> None:
    machine.forget()
    machine.unfit = {"step_2", "model"}
    with pytest.raises(ConfigError, match=r"(?s)step_2 is cut short.*model is"):
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
    machine.settings = read_table(Settings, settings)
    machine.forget()
    machine.source.steps.faults["fetch"] = HANG
    assert await machine.first() == "model"


async def test_a_model_folder_that_hangs_leaves_the_loop_free(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_file, answers = Path.is_file, threading.Event()
    monkeypatch.setattr(Path, "is_file", lambda path: answers.wait(10) and is_file(path))
    reading = asyncio.create_task(find_served_model(machine.model))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not reading.done()
    answers.set()
    assert (await reading).tensors


# --- a model from a hub --------------------------------------------------------------------


class OnlyHub(Starting):
    """A daemon's start that has nothing but a hub; its checks are the real ones."""

    def __init__(self, hub: LocalHub, folder: Path, ledger: Ledger) -> None:
        settings = {
            "source": {"kind": "huggingface", "repo": REPO},
            "state": {"directory": str(folder / "state")},
        }
        cache = folder / "cache"
        source = hub_source(hub, cache, kept=lambda: list_worth_keeping(ledger), poll=0.05)
        super().__init__(read_table(Settings, settings), ledger, source)
        self.has_waited = asyncio.Event()

    async def check(self, revision: Revision, path: Path) -> Checkpoint:
        content = self.source.content_of(revision)
        policy = Policy()
        return check_checkpoint(
            revision, path, served=self.served, policy=policy, content_id=content
        )

    def note(self, event: Event) -> None:
        super().note(event)
        if isinstance(event, Wait) and event.waiting_for is not None:
            self.has_waited.set()


def tiny(folder: Path, step: int, damage: str | None = None) -> Path:
    return write_tiny(folder / f"step_{step}", f"served by step {step}", damage=damage)


async def looked_at(hub: LocalHub, times: int) -> None:
    await turn_until(lambda: hub.count("HEAD") >= times, pause=0.01)


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
        running = asyncio.create_task(starting.run())
        if bad == "refused before":
            await looked_at(hub, 3)
        else:
            await asyncio.wait_for(starting.has_waited.wait(), PATIENCE)
        assert not running.done()
        good = hub.push(tiny(tmp_path, 2))
        assert (await asyncio.wait_for(running, PATIENCE)).revision.id == good


async def test_without_a_model_a_commit_that_ended_a_process_once_is_tried_again(
    tmp_path: Path,
) -> None:
    with local_hub() as hub:
        sha = hub.push(tiny(tmp_path, 1))
        starting = OnlyHub(hub, tmp_path, Ledger(crashes={sha: 1}))
        assert (await starting.run()).revision.id == sha


async def test_bytes_that_are_not_the_commits_are_never_started(tmp_path: Path) -> None:
    with local_hub() as hub:
        sha, ledger = hub.push(tiny(tmp_path, 1)), Ledger()
        starting = OnlyHub(hub, tmp_path, ledger)
        assert (await starting.run()).revision.id == sha
        folder = await starting.source.fetch(Revision(sha))
        ledger.went_live(Generation(1, Revision(sha), "fp", 0.0), str(folder))
        shutil.copyfile(
            tiny(tmp_path, 2) / "model.safetensors", folder / "model.safetensors"
        )  # whole and sound, but nobody's commit
        trouble = hub.fault(".", status=503, times=99)
        again = OnlyHub(hub, tmp_path, ledger)
        running = asyncio.create_task(again.run())
        await asyncio.wait_for(again.has_waited.wait(), PATIENCE)
        assert not running.done()
        assert again.started == []
        assert "the start waits for generation 1" in await again.has_told(WAITS_FOR_FILES)
        trouble.times = 0
        live = await asyncio.wait_for(running, PATIENCE)
        assert live.revision.id == sha
        assert again.trouble(WAITS_FOR_FILES) is None
        assert again.models == [folder]


async def test_without_a_model_what_the_last_good_generation_was_served_with_is_the_model(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path)
    shutil.rmtree(tmp_path / "step_1")
    write_tiny(tmp_path / "step_1", "served by step 1")
    state = tmp_path / "state"
    only_hub = {"source": {"kind": "huggingface", "repo": REPO}}
    machine.settings = read_table(Settings, {**only_hub, "state": {"directory": str(state)}})
    await machine.run()
    assert machine.models == [tmp_path / "step_1"]
    await keep_model(machine.model, state, is_configured=False)
    await machine.run()
    assert machine.models[1:] == [state / "model"]


@pytest.mark.parametrize("then", ["another commit", "no hub"])
async def test_a_model_from_a_hub_is_started_with_its_own_weights(
    tmp_path: Path, then: str
) -> None:
    with local_hub() as hub:
        first = hub.push(checkpoint("one"))
        starting = OnlyHub(hub, tmp_path, Ledger())
        check = starting.check

        async def checked(revision: Revision, path: Path) -> Checkpoint:
            if then == "another commit":
                hub.push(checkpoint("two"))
            else:
                hub.fault("HEAD", status=503, times=9)
            return await check(revision, path)

        starting.check = checked  # type: ignore[method-assign]
        live = await starting.run()
    assert live.revision.id == first
    (model,) = starting.models
    assert model.is_dir()
    assert model.name == starting.started[0]


# --- a start is an attempt --------------------------------------------------------------------


async def test_what_a_start_tries_is_in_the_history_as_any_attempt(machine: Machine) -> None:
    """It reached neither the history nor a metric: nobody could see what a start had refused."""
    machine.unfit = {"step_1"}
    live = await machine.run()
    damaged, gone, newest = machine.attempts
    assert damaged.outcome is Outcome.POSTPONED
    assert damaged.reason is not None
    assert damaged.reason.code == "corrupt"
    assert gone.outcome is Outcome.POSTPONED  # the source has it no more
    assert newest.outcome is Outcome.LIVE
    assert newest.generation == live.number
    assert list(newest.phases) == [
        Phase.FETCHING,
        Phase.VALIDATING,
        Phase.BUILDING,
        Phase.PROBING,
    ]
    assert all(each.by and each.by.verb == "start" for each in machine.attempts)
    assert list(machine.ledger.attempts) == machine.attempts[::-1]
    assert machine.saved[-1] == to_json(machine.ledger)


async def test_a_start_that_is_refused_for_its_files_alone_is_not_held_against_what_was_good(
    machine: Machine,
) -> None:
    machine.unfit = {"step_1", "step_2"}
    starting = asyncio.create_task(machine.run())
    await machine.has_told(WAITS_FOR_FILES)
    assert list(machine.ledger.refused) == ["newer"]
    machine.unfit = set()
    weights(machine.source.folder / "step_1", "other bytes, so worth another try")
    assert (await asyncio.wait_for(starting, PATIENCE)).revision == GOOD


async def test_a_first_answer_that_is_bad_refuses_what_was_started_with(machine: Machine) -> None:
    machine.forget()
    machine.steps.faults["probe"] = ProbeFailed("it talks nonsense")
    with pytest.raises(EngineLost, match="refused: it talks nonsense"):
        await machine.run()
    assert machine.answers is None
    assert list(machine.ledger.refused) == ["newer"]
    assert machine.ledger.under_way is None
    assert machine.saved[-1] == to_json(machine.ledger)


async def test_a_model_whose_answers_are_bad_is_a_setting(machine: Machine) -> None:
    machine.forget()
    machine.unfit = {"step_2"}
    machine.steps.faults["probe"] = ProbeFailed("it talks nonsense")
    with pytest.raises(ConfigError, match="model fails the probe: it talks nonsense"):
        await machine.run()


async def test_a_process_that_dies_in_its_start_blames_what_was_not_good_before(
    machine: Machine,
) -> None:
    blamed = []

    async def start_engine(
        model: Path, weights: Checkpoint | None, progress: AttemptProgress
    ) -> FakeEngine:
        blamed.append(machine.ledger.under_way)
        return await Starting.start_engine(machine, model, weights, progress)

    machine.start_engine = start_engine  # type: ignore[method-assign]
    await machine.run()
    machine.unfit = {"step_1"}
    machine.ledger = Ledger()
    await machine.run()
    assert blamed == [None, machine.source.known["step_2"]]


async def test_a_start_says_what_it_is_at(machine: Machine) -> None:
    await machine.run()
    phases = [each.phase for each in machine.events if isinstance(each, PhaseEntered)]
    assert phases == [Phase.FETCHING, Phase.VALIDATING, Phase.BUILDING, Phase.PROBING, None]


async def test_what_is_gone_is_asked_of_the_source_once(machine: Machine, tmp_path: Path) -> None:
    """A hub that is out of reach was waited for twice, by two candidates of one generation."""
    shutil.rmtree(tmp_path / "step_1")
    assert await machine.first() == "step_2"
    outcomes = [(each.revision.label, each.outcome) for each in machine.attempts]
    assert outcomes == [("step_1", Outcome.POSTPONED), ("step_2", Outcome.LIVE)]


async def test_a_model_that_is_not_mounted_yet_is_waited_for(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not one whose name is mistaken: of that the operator is told at once."""
    monkeypatch.setattr(whereabouts, "MOUNT_SECONDS", 0.01)
    elsewhere, point = machine.model.rename(tmp_path / "elsewhere"), machine.model
    point.mkdir()
    starting = asyncio.create_task(machine.run())
    await turn_until(lambda: Wait(f"{point} to be mounted", "start") in machine.events)
    assert machine.started == []
    point.rmdir()
    elsewhere.rename(point)
    await asyncio.wait_for(starting, PATIENCE)
    assert machine.events[-1] == Wait(None, "start")
    shutil.rmtree(point)
    with pytest.raises(ConfigError, match="is no model folder"):
        await machine.run()


async def test_checkpoints_that_are_not_mounted_yet_are_waited_for_where_nothing_else_will_do(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whereabouts, "MOUNT_SECONDS", 0.01)
    point = tmp_path / "checkpoints"
    point.mkdir()
    raw = {"engine": {"model": str(machine.model)}, "source": {"path": str(point)}}
    machine.settings = read_table(Settings, raw)
    machine.forget()
    machine.unfit = {"step_2", machine.model.name}
    starting = asyncio.create_task(machine.run())
    await turn_until(lambda: Wait(f"{point} to be mounted", "start") in machine.events)
    tried = len(machine.attempts)
    machine.unfit = set()
    (point / "step_3").mkdir()
    await asyncio.wait_for(starting, PATIENCE)
    assert len(machine.attempts) == tried + 1  # nothing was tried while nothing had changed


# --- what was live is not to blame for what it answers ------------------------------------------


def was_live(machine: Machine, fingerprint: str) -> None:
    machine.forget()
    live = Generation(1, GOOD, fingerprint, 0.0)
    machine.ledger.went_live(live, str(machine.source.folder / GOOD.label))


@pytest.fixture
def proven(machine: Machine) -> Machine:
    """A machine whose last good generation was live with the very weights that it has."""
    was_live(machine, "fp-good")
    machine.ledger.served_by = ENGINE
    machine.steps.faults["probe"] = ProbeFailed("probe 'hi': expected 'Paris' in it")
    return machine


@pytest.mark.parametrize(
    "before", [ENGINE, None, replace(ENGINE, model="/elsewhere")], ids=["same", "unknown", "moved"]
)
async def test_weights_that_were_live_answer_though_they_fail_a_probe_and_are_never_refused(
    proven: Machine, before: ServedBy | None
) -> None:
    """A folder that has moved, with the same files in it, is the same model."""
    for _ in range(3):
        proven.ledger.served_by = before
        live = await proven.run()
        assert (live.number, live.revision) == (1, GOOD)
        assert proven.ledger.refused == {}
    async with proven.serving():
        told = await proven.has_told(PROBE_DOUBTED)
    assert (
        "probe 'hi': expected 'Paris' in it; generation 1, step_1 (good), live since 1970" in told
    )
    assert proven.ledger.served_by == ENGINE


@pytest.mark.parametrize("before", [ENGINE, None], ids=["same", "unknown"])
async def test_what_was_proven_with_this_very_engine_is_asked_for_whole_answers_once_it_serves(
    proven: Machine, before: ServedBy | None
) -> None:
    proven.ledger.served_by = before
    proven.steps.faults.clear()
    entered = proven.steps.entered
    await proven.run()
    assert entered["probe briefly"].is_set() is (before is not None)
    assert entered["probe"].is_set() is (before is None)
    async with proven.serving():
        if before is not None:
            await entered["probe"].wait()
    assert proven.trouble(PROBE_DOUBTED) is None


async def test_what_was_proven_and_answers_no_numbers_now_is_doubted_at_once(
    proven: Machine,
) -> None:
    proven.steps.faults["probe briefly"] = ProbeFailed("probe 'hi': NaN or infinities")
    await proven.run()
    assert "NaN" in str(proven.trouble(PROBE_DOUBTED))
    assert proven.steps.entered["scrub"].is_set()


async def test_a_doubt_stands_though_the_weights_have_another_number_now(proven: Machine) -> None:
    proven.ledger.numbers_given = 5  # others were live after it
    proven.ledger.served_by = None
    assert (await proven.run()).number == 6
    assert "expected 'Paris'" in str(proven.trouble(PROBE_DOUBTED))


@pytest.mark.parametrize(
    ("before", "named"),
    [
        (replace(ENGINE, sglang_jax="0.0.1"), "sglang-jax 0.0.1 then, 0.0.2 now"),
        (replace(ENGINE, args="more"), r"\[engine.args\] are others"),
        (replace(ENGINE, files="x", model="/m"), r"model folder /m then, /srv/model now"),
    ],
)
async def test_with_another_engine_a_failed_probe_is_a_setting_that_names_both(
    proven: Machine, before: ServedBy, named: str
) -> None:
    proven.ledger.served_by = before
    with pytest.raises(ConfigError, match=rf"expected 'Paris'.*{named}.*correct the \[\[probe\]\]"):
        await proven.run()
    assert proven.answers is None
    assert proven.ledger.refused == {}
    assert proven.ledger.served_by == before


async def test_no_answer_at_all_accuses_the_engine(
    proven: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_switch, "FIRST_ANSWER_SECONDS", 0.01)
    proven.steps.faults["probe briefly"] = HANG
    with pytest.raises(
        EngineLost, match=r"no answer to the probe within 0\.01 s, by weights that answered"
    ):
        await proven.run()
    assert (proven.ledger.refused, proven.ledger.under_way) == ({}, None)


async def test_other_weights_under_a_name_that_was_live_are_judged(proven: Machine) -> None:
    was_live(proven, "other weights")
    proven.ledger.live = None  # of an earlier life
    with pytest.raises(EngineLost, match="what the engine started with is refused"):
        await proven.run()
    assert list(proven.ledger.refused) == [GOOD.id]


# --- what is gone --------------------------------------------------------------------------------


def live_before(machine: Machine, *names: str, source: str = "") -> None:
    """These were live, one after the other, and lie where they lay."""
    machine.forget()
    machine.ledger.source = source
    machine.source.known.clear()
    for number, name in enumerate(names, start=1):
        path = machine.model if name == "model" else weights(machine.source.folder / name)
        live = Generation(number, Revision(f"id of {name}", name), f"fp-id of {name}", 0.0)
        machine.ledger.went_live(live, str(path))


def set_engine(machine: Machine, **engine: str) -> None:
    raw = {"engine": {"model": str(machine.model), **engine}}
    machine.settings = read_table(Settings, raw)


def put(machine: Machine, name: str) -> None:
    weights(machine.source.folder / name)
    machine.source.known[name] = Revision(f"id of {name}", name)


def gone(machine: Machine, *names: str) -> None:
    for name in names:
        shutil.rmtree(machine.source.folder / name)


async def test_where_all_that_was_live_is_gone_it_waits_and_goes_on_with_the_same_generation(
    machine: Machine,
) -> None:
    """The bare model answered, as if all were well, and became the last good generation."""
    live_before(machine, "model", "step_4", "step_5")
    gone(machine, "step_4", "step_5")
    starting = asyncio.create_task(machine.run())
    told = await machine.has_told(WAITS_FOR_FILES)
    assert "the start waits for generation 3, step_5" in told
    assert f"{machine.source.folder / 'step_5'} is gone" in told
    tried = len(machine.attempts)
    for _ in range(20):
        await asyncio.sleep(0.01)
    assert (len(machine.attempts), machine.started, machine.ledger.refused) == (tried, [], {})
    weights(machine.source.folder / "step_5")
    assert (await asyncio.wait_for(starting, PATIENCE)).number == 3
    assert machine.trouble(WAITS_FOR_FILES) is None
    assert machine.trouble(OLDER_ANSWERS) is None


@pytest.mark.parametrize(
    ("when_gone", "there", "newest", "answers"),
    [
        ("older", ["step_4"], None, "step_4"),
        ("older", ["step_4"], "step_3", "step_4"),
        ("older", [], "step_3", "step_3"),
        ("older", ["step_4"], "step_9", "step_9"),
        ("wait", ["step_4"], None, None),
        ("wait", ["step_4"], "step_3", None),
        ("wait", ["step_4"], "step_9", "step_9"),
    ],
)
async def test_an_older_one_answers_if_it_may_and_is_told_and_a_newer_one_always_may(
    machine: Machine, when_gone: str, there: list[str], newest: str | None, answers: str | None
) -> None:
    set_engine(machine, when_gone=when_gone)
    live_before(machine, "model", "step_4", "step_5")
    gone(machine, *{"step_4", "step_5"} - set(there))
    if newest is not None:
        put(machine, newest)
    starting = asyncio.create_task(machine.run())
    if answers is None:
        await machine.has_told(WAITS_FOR_FILES)
        put(machine, "step_10")
        answers = "step_10"
    live = await asyncio.wait_for(starting, PATIENCE)
    assert live.revision.label == answers
    told, missed = machine.trouble(OLDER_ANSWERS), machine.ledger.missed
    if answers in ("step_9", "step_10"):
        assert (told, missed) == (None, None)
    else:
        assert told is not None
        assert f"{live.revision} answers instead of generation 3, step_5" in told
        assert missed is not None
        assert missed.number == 3


async def test_what_is_missed_is_missed_at_the_next_start_too_until_its_files_are_back(
    machine: Machine,
) -> None:
    live_before(machine, "model", "step_4", "step_5")
    gone(machine, "step_5")
    for _ in range(2):
        machine.ledger = from_json(to_json(machine.ledger))
        machine.events.clear()
        assert (await machine.run()).revision.label == "step_4"
        assert "instead of generation 3, step_5" in await machine.has_told(OLDER_ANSWERS)
    weights(machine.source.folder / "step_5")
    machine.events.clear()
    assert (await machine.run()).revision.label == "step_5"
    assert machine.trouble(OLDER_ANSWERS) is None
    assert machine.ledger.missed is None


@pytest.mark.parametrize("source", ["", "another"])
async def test_a_pin_holds_against_newer_ones_where_its_files_are_gone(
    machine: Machine, source: str
) -> None:
    live_before(machine, "step_5", source=source)
    machine.ledger.source = "the one of now"
    set_engine(machine, when_gone="wait")
    machine.ledger.pinned = True
    gone(machine, "step_5")
    put(machine, "step_9")
    starting = asyncio.create_task(machine.run())
    await machine.has_told(WAITS_FOR_FILES)
    weights(machine.source.folder / "step_5")
    assert (await asyncio.wait_for(starting, PATIENCE)).revision.label == "step_5"


def follow_another_source(machine: Machine, *names: str) -> None:
    """The operator has named another folder, which holds these."""
    machine.source.folder = machine.source.folder / "another"
    machine.ledger.source = str(machine.source.folder)
    for name in names:
        put(machine, name)


@pytest.mark.parametrize("newest", ["step_3", "step_4", "step_5", "step_9", "model"])
@pytest.mark.parametrize("when_gone", ["older", "wait"])
async def test_where_the_settings_name_another_source_its_newest_answers_and_not_as_an_older_one(
    machine: Machine, newest: str, when_gone: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It waited for ever for the former folder if the newest was live before, or is the model."""
    caplog.set_level("INFO")
    set_engine(machine, when_gone=when_gone)
    former = str(machine.source.folder)
    live_before(machine, "model", "step_4", "step_5", source=former)
    gone(machine, "step_4", "step_5")
    follow_another_source(machine, newest)
    live = await asyncio.wait_for(machine.run(), PATIENCE)
    assert live.revision.label == newest
    assert machine.trouble(WAITS_FOR_FILES) is machine.trouble(OLDER_ANSWERS) is None
    assert machine.ledger.missed is None
    if newest != "step_5":  # that is the last live one, found again
        why = (
            f"the newest checkpoint of {machine.source.folder}, where [source] was {former} before"
        )
        assert [r.__dict__["why"] for r in caplog.records if r.message == "boot.chosen"] == [why]
        last = machine.ledger.start_target
        assert last is not None
        assert last.source == machine.ledger.source


async def test_another_source_follows_what_was_live_where_that_is_there(machine: Machine) -> None:
    live_before(machine, "step_5", source=str(machine.source.folder))
    follow_another_source(machine, "step_3")
    assert (await machine.run()).revision.label == "step_5"


async def test_another_source_that_is_empty_or_not_mounted_yet_is_waited_for_and_said_once(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    former = str(machine.source.folder)
    live_before(machine, "model", "step_5", source=former)
    gone(machine, "step_5")
    follow_another_source(machine)
    starting = asyncio.create_task(machine.run())
    told = await machine.has_told(WAITS_FOR_FILES)
    todo = f"put a sound checkpoint there, or set [source] to {former} again"
    assert f"{machine.source.folder}, where [source] was {former} before: " in told
    assert todo in told
    for _ in range(20):
        await asyncio.sleep(0.01)
    said = [
        (each.__dict__["candidate"], each.__dict__["why"])
        for each in caplog.records
        if each.message == "boot.no_candidate"
    ]
    assert len(said) == len(set(said)) == 4
    assert len([why for _, why in said if why.endswith(todo)]) == 1
    put(machine, "step_2")
    assert (await asyncio.wait_for(starting, PATIENCE)).revision.label == "step_2"


async def test_what_an_older_version_wrote_names_no_source_and_none_counts_as_another(
    machine: Machine,
) -> None:
    live_before(machine, "step_5")
    gone(machine, "step_5")
    follow_another_source(machine, "step_3")
    await machine.run()
    assert "step_3 (id of step_3) answers instead of" in await machine.has_told(OLDER_ANSWERS)


@pytest.mark.parametrize("decided", ["boot", "rollback", "only the model was live"])
async def test_the_model_answers_where_it_is_meant(machine: Machine, decided: str) -> None:
    live_before(machine, "model", "step_5", *["model"] * (decided == "rollback"))
    if decided == "only the model was live":
        live_before(machine, "model")
    if decided == "boot":
        set_engine(machine, boot="model")
    assert (await asyncio.wait_for(machine.run(), PATIENCE)).revision.label == "model"
    assert machine.trouble(WAITS_FOR_FILES) is machine.trouble(OLDER_ANSWERS) is None


async def test_the_model_is_no_fallback_as_the_newest_of_the_source_either(
    machine: Machine,
) -> None:
    live_before(machine, "model", "step_5")
    gone(machine, "step_5")
    machine.source.known["model"] = Revision("id of model", "model")
    starting = asyncio.create_task(machine.run())
    await machine.has_told(WAITS_FOR_FILES)
    weights(machine.source.folder / "step_5")
    assert (await asyncio.wait_for(starting, PATIENCE)).revision.label == "step_5"


async def test_what_does_not_fit_the_model_any_more_is_a_setting_and_no_file_to_wait_for(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    live_before(machine, "model", "step_5")

    async def check(revision: Revision, path: Path) -> Checkpoint:
        raise CheckpointIncompatible("wider than the model", code="shape")

    monkeypatch.setattr(machine, "check", check)
    with pytest.raises(ConfigError, match=r'(?s)boot = "model" to start without it.*wider than'):
        await machine.run()
    assert machine.ledger.refused == {}
