"""SIGHUP: what of the settings changes at once, what waits for a restart, and what is wrong."""

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hotreload.behaviour import AnswerCheck
from hotreload.daemon import Daemon
from hotreload.engine.answering.probe import Probe
from hotreload.events import SettingsRead, TroubleNews
from hotreload.features import FEATURES
from hotreload.features.command.command import CommandSettings
from hotreload.features.compare.settings import CompareLimits, CompareSettings
from hotreload.features.pause.pause import Pause
from hotreload.features.sessions.sessions import Sessions
from hotreload.life import live_settings
from hotreload.life.acceptance import read_settings
from hotreload.life.serving_life import ServingLife
from hotreload.settings.load import _flat, need_no_restart, reread
from hotreload.settings.sections import Settings, class_with
from hotreload.troubles import SETTINGS_REFUSED
from hotreload.types import Generation, Revision
from tests.fakes import FakeEngine, Steps
from tests.features.admissions import admission_of
from tests.features.bake.found import baking_of
from tests.waiting import Witness

ALL = class_with(FEATURES)
CAN_CHANGE = need_no_restart(ALL)
LIVE = Generation(1, Revision("aaaa", "step_1"), "fp", 1.0)
PROBE = Probe("2 + 2 =", 8, contains="4")


class Life(Witness):
    """A daemon that serves with an engine of words, and its file of settings."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.file = folder / "hotreload.toml"
        places = {"engine.model": "m", "source.path": "c", "state.directory": "state"}
        self.usual = [f"{setting}={folder / name}" for setting, name in places.items()]
        self.file.touch()
        (folder / "prompts.jsonl").write_text('{"prompt": "2 + 2 =", "answer": "4"}')
        self.daemon: Daemon = Daemon(self.read(), self.read)
        self.daemon.events.subscribe(self.note)
        self.engine = FakeEngine(Steps(), LIVE.revision)
        part = self.daemon.life
        assert isinstance(part, ServingLife)
        self.part: ServingLife = part
        self.daemon._take_signals()
        self.part.begin(self.engine, LIVE)

    def read(self) -> Settings:
        return read_settings(self.file, [*self.usual, "metrics.address=''"], {}, FEATURES).settings

    @property
    def reconciler(self) -> Any:
        return self.daemon.slot.operator().reconciler

    @property
    def rules(self) -> Any:
        return self.reconciler.rules

    @property
    def compare(self) -> CompareSettings:
        """What the next attempt is compared by."""
        return self.daemon.live_settings.settings.of(CompareSettings)

    @property
    def log_level(self) -> int:
        return logging.getLogger("hotreload").level

    @property
    def told(self) -> list[SettingsRead]:
        return [event for event in self.happened if isinstance(event, SettingsRead)]

    @property
    def troubles(self) -> list[TroubleNews]:
        return [event for event in self.happened if isinstance(event, TroubleNews)]

    async def reread(self, text: str) -> SettingsRead:
        self.file.write_text(text)
        before = len(self.told)
        os.kill(os.getpid(), signal.SIGHUP)
        await self.until(lambda: len(self.told) > before)
        return self.told[-1]


HEARD = "[compare]\nreplay = 16\n"
CORPUS = "[compare]\ncorpus = 'prompts.jsonl'\n"
BEFORE = {
    "compare.limits.min_accuracy": CORPUS,
    "compare.limits.max_heard_perplexity_ratio": HEARD,
    "compare.limits.min_heard_same_top": HEARD,
}
"""What must stand in the file, too, for a setting to make sense."""
CHANGES: dict[str, tuple[str, Callable[[Life], object], object]] = {
    "probe": (
        "[[probe]]\nprompt = '2 + 2 ='\nmax_new_tokens = 8\ncontains = '4'\n",
        lambda life: life.engine.judged_by[0],
        [PROBE],
    ),
    "checks.max_drift": ("[checks]\nmax_drift = 3.5", lambda life: life.engine.judged_by[1], 3.5),
    **{
        f"checks.{name}": (
            f"[checks]\n{name} = {value!r}",
            lambda life, name=name: getattr(life.daemon.live_settings.settings.checks, name),  # type: ignore[misc]
            expected,
        )
        for name, value, expected in (
            ("dtype_change", "cast", "cast"),
            ("nonfinite", "allow", "allow"),
            ("extra_tensors", ["x.*"], ("x.*",)),
        )
    },
    **{
        f"reload.{name}": (
            f"[reload]\n{name} = 3",
            lambda life, name=name: getattr(life.rules, name),  # type: ignore[misc]
            3,
        )
        for name in (
            "drain_timeout",
            "fetch_timeout",
            "finish_timeout",
            "probe_timeout",
            "sets",
            "stage_timeout",
            "validate_timeout",
        )
    },
    "reload.max_held": (
        "[reload]\nmax_held = 3",
        lambda life: life.daemon.entrance.gates[0].max_held,
        3,
    ),
    "reload.min_interval": (
        "[reload]\nmin_interval = 3",
        lambda life: life.rules.min_interval,
        3,
    ),
    **{
        f"server.limits.{name}": (
            f"[server.limits]\n{name} = 3",
            lambda life, name=name: getattr(life.daemon.limits, name),  # type: ignore[misc]
            3,
        )
        for name in (
            "batch",
            "bodies_bytes",
            "body_bytes",
            "concurrent",
            "generation_seconds",
            "request_seconds",
        )
    },
    **{
        f"compare.limits.{name}": (
            f"[compare.limits]\n{name} = 0.5",
            lambda life, name=name: getattr(life.compare.limits, name),  # type: ignore[misc]
            0.5,
        )
        for name in CompareLimits.__dataclass_fields__
    },
    "compare.corpus": (
        CORPUS,
        lambda life: [(each.prompt, each.check) for each in life.compare.questions],
        [("2 + 2 =", AnswerCheck("answer", "4"))],
    ),
    "command.timeout": (
        "[command]\ntimeout = 3",
        lambda life: life.daemon.live_settings.settings.of(CommandSettings).timeout,
        3.0,
    ),
    "compare.time": ("[compare]\ntime = 3", lambda life: life.compare.time, 3.0),
    "bake.allowed_increase": (
        "[bake]\nallowed_increase = 0.1",
        lambda life: baking_of(life.daemon).rules.allowed_increase,
        0.1,
    ),
    "bake.time": (
        "[bake]\ntime = '5m'",
        lambda life: (
            baking_of(life.daemon).rules.time,
            baking_of(life.daemon).conducts.is_counting,
        ),
        (300.0, True),
    ),
    "bake.inconclusive": (
        "[bake]\ninconclusive = 'promote'",
        lambda life: baking_of(life.daemon).rules.inconclusive,
        "promote",
    ),
    "bake.max_time": (
        "[bake]\nmax_time = '1h'",
        lambda life: baking_of(life.daemon).rules.longest,
        3600.0,
    ),
    "sessions.keep": (
        "[sessions]\nkeep = 3",
        lambda life: admission_of(life.daemon.entrance, Sessions).keep,
        3,
    ),
    "pause.limit": (
        "[pause]\nlimit = 3",
        lambda life: admission_of(life.daemon.entrance, Pause).limit,
        3,
    ),
    "server.unknown_fields": (
        "[server]\nunknown_fields = 'ignore'",
        lambda life: life.daemon.limits.unknown_fields,
        "ignore",
    ),
    "log.level": ("[log]\nlevel = 'debug'", lambda life: life.log_level, logging.DEBUG),
    "log.format": (
        "[log]\nformat = 'json'",
        lambda life: life.daemon.live_settings.settings.log.format,
        "json",
    ),
}
"""For each setting that can change: a file that changes it, and where it must be seen then."""


@asynccontextmanager
async def living(folder: Path) -> AsyncIterator[Life]:
    life = Life(folder)
    task = asyncio.create_task(life.part._lasting["reread the settings"]())
    try:
        yield life
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(number)


@pytest.fixture
async def life(tmp_path: Path) -> AsyncIterator[Life]:
    async with living(tmp_path) as life:
        yield life


@pytest.fixture(autouse=True)
def log_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What tests of other files see of the log must not hang on the settings of these."""

    def configure(level: str, format: str) -> None:
        logger = logging.getLogger("hotreload")
        monkeypatch.setattr(logger, "level", logging.getLevelNamesMapping()[level.upper()])

    monkeypatch.setattr(live_settings, "configure", configure)


def test_every_setting_that_can_change_is_tried_here() -> None:
    assert CHANGES.keys() == CAN_CHANGE
    assert {where for where, _ in _flat(ALL())} >= CAN_CHANGE


@pytest.mark.parametrize("name", sorted(CHANGES))
async def test_a_setting_that_can_change_is_gone_by_at_once(life: Life, name: str) -> None:
    text, look, wanted = CHANGES[name]
    assert look(life) != wanted
    before = BEFORE.get(name, "")
    if before:
        await life.reread(before)
    told = await life.reread(before + text)
    assert look(life) == wanted
    section, _, key = name.rpartition(".")
    changed = (f"[{section}] {key}" if section else f"[[{key}]]",)
    assert told == SettingsRead(changed, waiting=told.waiting)
    assert bool(told.waiting) == (before == HEARD)  # who is heard is decided at a start


async def test_what_wants_a_restart_is_named_each_time_and_the_rest_is_gone_by(life: Life) -> None:
    text = "[engine]\ntp = 2\n[server]\ntcp = '127.0.0.1:8000'\n[reload]\nmode = 'drain'\n"
    waiting = ("[engine] tp", "[reload] mode", "[server] tcp")
    told = await life.reread(f"{text}sets = 3\n")
    assert told == SettingsRead(("[reload] sets",), waiting)
    assert await life.reread(f"{text}sets = 3\n") == SettingsRead((), waiting)
    assert life.rules.sets == 3
    assert life.daemon.live_settings.settings.engine.tp == 1
    assert await life.reread("") == SettingsRead(("[reload] sets",))


async def test_a_corpus_is_read_again_though_the_file_of_settings_is_the_same(life: Life) -> None:
    await life.reread(CORPUS)
    corpus = life.file.with_name("prompts.jsonl")
    corpus.write_text('{"prompt": "3 + 3 =", "answer": "6"}')
    assert await life.reread(CORPUS) == SettingsRead(("[compare] corpus",))
    assert [each.prompt for each in life.compare.questions] == ["3 + 3 ="]
    corpus.write_text('{"prompt": "3 + 3 =", "answer": 6}')
    told = await life.reread(CORPUS)
    assert (
        told.error
        == f"[compare] corpus: {corpus}: line 1: answer: should be a text that is not empty"
    )
    assert [each.prompt for each in life.compare.questions] == ["3 + 3 ="]


async def test_a_corpus_that_the_engine_cannot_be_asked_changes_nothing(life: Life) -> None:
    life.engine.cannot_compare = None
    life.file.with_name("prompts.jsonl").write_text('{"prompt": "too long"}')
    told = await life.reread(f"{CORPUS}[reload]\nsets = 3\n")
    assert "prompts.jsonl: line 1: is too long" in (told.error or "")
    assert (life.compare.questions, life.rules.sets) == ((), 2)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[broken", "is not TOML"),
        ("[reload]\nsets = 3\nprobe_timeout = 'soon'", "'soon' is no duration"),
        ("[reload]\nsets = 3\n[[probe]]\nprompt = 'too long'", "one is too long"),
        ("[[probe]]\nprompt = 'a'\nregex = 'a{99999999999999999999}'", "is no regular expression"),
    ],
)
async def test_what_is_wrong_changes_nothing_and_is_told(life: Life, text: str, why: str) -> None:
    await life.reread("[reload]\nmax_held = 7\n")
    before = life.daemon.live_settings.settings
    told = await life.reread(text)
    assert told.error is not None
    assert why in told.error
    assert (told.changed, told.waiting) == ((), ())
    assert life.daemon.live_settings.settings is before
    assert (life.rules.sets, life.daemon.entrance.gates[0].max_held) == (2, 7)
    assert life.engine.judged_by == ([], None)


async def test_settings_that_are_refused_are_a_trouble_until_they_are_read_again(
    life: Life,
) -> None:
    await life.reread("[broken")
    await life.reread("[broken")
    began, *again = life.troubles
    assert (began.code, again) == (SETTINGS_REFUSED, [])
    assert "is not TOML" in (began.message or "")
    assert "SIGHUP" in began.todo
    await life.reread("")
    assert life.troubles == [began, TroubleNews(SETTINGS_REFUSED, None)]


async def test_a_file_whose_disk_hangs_is_told_and_the_loop_goes_on(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    comes_back = threading.Event()
    monkeypatch.setattr(live_settings, "REREAD_SECONDS", 0.01)
    monkeypatch.setattr("hotreload.threads.LEAVE_AFTER", 0.01)
    monkeypatch.setattr(life.daemon.live_settings, "read", comes_back.wait)
    try:
        told = await life.reread("")
        assert told.error == ("reading the settings took longer than 0.01 s (is their disk there?)")
    finally:
        comes_back.set()


async def test_a_fault_of_ours_is_told_and_does_not_end_what_serves(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing: dict[str, Settings] = {}
    with monkeypatch.context() as broken:
        broken.setattr(life.daemon.live_settings, "read", lambda: nothing["nothing"])
        told = await life.reread("")
        assert told.error == "internal error in hotreload: KeyError: 'nothing'"
    assert (await life.reread("[reload]\nsets = 3\n")).changed == ("[reload] sets",)


async def test_who_asks_while_they_are_read_is_heard_too(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file may have been changed after it was read."""
    read, reads = life.read, 0

    def changed_meanwhile() -> Settings:
        nonlocal reads
        reads += 1
        found = read()
        if reads == 1:
            life.file.write_text("[reload]\nsets = 3\n")
            os.kill(os.getpid(), signal.SIGHUP)
        return found

    monkeypatch.setattr(life.daemon.live_settings, "read", changed_meanwhile)
    os.kill(os.getpid(), signal.SIGHUP)
    await life.until(lambda: any(told.changed for told in life.told))
    assert life.rules.sets == 3


async def test_a_checkpoint_is_looked_for_as_well(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    causes: list[str] = []
    monkeypatch.setattr(life.daemon.source, "wake", causes.append)
    await life.reread("")
    assert causes == ["signal"]


def test_nothing_differs_from_itself() -> None:
    found = reread(ALL(), ALL())
    assert (found.settings, found.changed, found.waiting) == (ALL(), (), ())
