"""What is written, and that a stderr nobody reads harms nobody."""

import io
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest
import structlog

from hotreload.core.rules import Rules
from hotreload.events import (
    AttemptFinished,
    Event,
    Events,
    GateChanged,
    GenerationEnded,
    ModeChosen,
    PhaseEntered,
    Progress,
    SettingsRead,
    SourceScanned,
    Wait,
)
from hotreload.observe import log
from hotreload.observe.log import LogObserver, LossyHandler, configure
from hotreload.picture.under_way import Pace
from hotreload.threads import in_thread
from hotreload.types import Checkpoint, GateState, Mode, Outcome, Phase, Reason, Revision, Staged
from tests.core.conftest import World
from tests.observe.things import STEP_8, both, ended, generation, rejected, went_live

TOUCHED = ("", "hotreload", *log.LIBRARIES)


@pytest.fixture(autouse=True)
def loggers_as_they_were() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in TOUCHED]
    before = [(it.handlers[:], it.level, it.propagate) for it in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        logger.handlers[:], logger.propagate = handlers, propagate
        logger.setLevel(level)
    logging.captureWarnings(False)
    structlog.reset_defaults()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def logged(*events: Event, level: str = "info") -> list[dict[str, Any]]:
    stream = io.StringIO()
    configure(level, "json", stream)
    publisher = Events()
    publisher.subscribe(LogObserver(Pace()).observe)
    for event in events:
        publisher.publish(event)
    return lines(stream)


class TalkativeWorld(World):
    """Its checks write a line of log from a thread, and so does its staging, as a library would."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Rules(drain_timeout=0.1, probe_timeout=0.25, prove_within=0.05))
        self.publish(Wait("a checkpoint", "source"))
        self._quiet_stage, self.engine.stage = self.engine.stage, self._stage  # type: ignore[method-assign]

    async def _validate(self, revision: Revision, path: Path) -> Checkpoint:
        def check(cancel: threading.Event) -> None:
            logging.getLogger("hotreload.checks").info("checkpoint.notes")

        await in_thread(check)
        return await super()._validate(revision, path)

    async def _stage(self, checkpoint: Checkpoint) -> Staged:
        logging.getLogger("jax").warning("slow")
        return await self._quiet_stage(checkpoint)


async def test_each_line_of_an_attempt_carries_its_id_and_no_other_does(tmp_path: Path) -> None:
    stream = io.StringIO()
    configure("debug", "json", stream)
    world = TalkativeWorld(tmp_path)
    world.subscribe(LogObserver(Pace()).observe)
    async with world.running():
        for number in (1, 2):
            world.source.publish(Revision(f"r{number}", f"step_{number}"))
            await world.attempted(number)
        await world.until(lambda: world.gate.state is GateState.OPEN)
    of = {"checkpoint.notes", "slow", "reload.phase", "gate.open", "generation.live", "reload.live"}
    told = [line for line in lines(stream) if line["event"] in of]
    ids = list(dict.fromkeys(line["attempt"] for line in told))
    assert len(ids) == 2
    for id in ids:
        assert {line["event"] for line in told if line["attempt"] == id} == of
    others = [line for line in lines(stream) if line["event"] == "revision.wanted"]
    assert len(others) == 2
    assert not any("attempt" in line for line in others)


@pytest.mark.parametrize("outcome", list(Outcome))
def test_an_attempt_is_one_line_whatever_its_outcome(outcome: Outcome) -> None:
    (line,) = logged(
        *(PhaseEntered(STEP_8, phase) for phase in Phase),
        GateChanged(GateState.HOLDING, 1, 0),
        GateChanged(GateState.OPEN, 0, 0),
        PhaseEntered(STEP_8, None),
        AttemptFinished(ended(outcome), generation()),
    )
    assert line["event"] == f"reload.{outcome.value}"
    assert {f"{phase.value}_s" for phase in Phase} <= line.keys()


def test_the_line_of_an_attempt_tells_it_all() -> None:
    (line,) = logged(AttemptFinished(went_live(4), generation(4), replica=1))
    assert line["event"] == "reload.live"
    assert line["replica"] == 1
    assert line["level"] == "info"
    assert (line["revision"], line["label"], line["outcome"]) == (STEP_8.id, "step-8", "live")
    assert (line["generation"], line["live"], line["rolled_back"]) == (4, 4, False)
    assert (line["pause_s"], line["staging_s"], line["swapping_s"]) == (0.04, 1.25, 0.003)
    assert line["probing_s"] == 0.0
    assert line["timestamp"].endswith("Z")


def test_the_line_of_a_refusal_says_why() -> None:
    many = Reason("shape", "900 tensors differ", tuple(f"tensor {n}" for n in range(900)))
    attempt = AttemptFinished(rejected(many, rolled_back=True), generation(3))
    (line,) = logged(attempt)
    assert (line["level"], line["code"]) == ("warning", "shape")
    assert line["message"] == "900 tensors differ"
    assert (len(line["findings"]), line["findings_total"]) == (10, 900)
    assert (line["generation"], line["live"], line["rolled_back"]) == (None, 3, True)


def test_the_end_of_a_generation_and_the_mode_are_worth_a_line() -> None:
    ended, mode = logged(GenerationEnded(generation(3)), ModeChosen(Mode.OVERLAP))
    assert (ended["event"], ended["level"], ended["generation"]) == ("generation.ended", "info", 3)
    assert (mode["event"], mode["level"], mode["mode"]) == ("reload.mode", "info", "overlap")
    assert "todo" not in mode


def test_draining_that_nobody_asked_for_is_a_warning_that_says_what_to_do() -> None:
    (line,) = logged(ModeChosen(Mode.DRAIN, "the engine decodes speculatively"))
    assert (line["level"], line["mode"]) == ("warning", "drain")
    assert line["why"] == "the engine decodes speculatively"
    assert "[reload] mode = 'drain'" in line["todo"]


def test_steps_on_the_way_are_for_debugging() -> None:
    steps = (PhaseEntered(STEP_8, Phase.STAGING), GateChanged(GateState.HOLDING, 3, 0))
    assert logged(*steps) == []
    assert [line["event"] for line in logged(*steps, level="debug")] == [
        "reload.phase",
        "gate.holding",
    ]


def test_a_folder_that_is_away_is_told_once_and_once_when_it_is_back() -> None:
    away, back = SourceScanned("rescan", "no such folder"), SourceScanned("rescan")
    told = logged(back, away, away, away, back, back)
    assert [(line["level"], line["error"]) for line in told] == [
        ("warning", "no such folder"),
        ("info", None),
    ]


def test_waiting_for_the_same_thing_is_told_once() -> None:
    told = logged(Wait("shard 2"), Wait("shard 2"), Wait(None), Wait("shard 3"))
    assert [line["waiting_for"] for line in told] == ["shard 2", "shard 3"]


def test_a_sealed_gate_warns_and_says_why() -> None:
    (line,) = logged(GateChanged(GateState.SEALED, 0, 0, "SIGTERM"))
    assert (line["event"], line["level"], line["reason"]) == ("gate.sealed", "warning", "SIGTERM")


def test_ours_and_the_libraries_lines_take_one_way_out() -> None:
    stream = io.StringIO()
    configure("info", "json", stream)
    logging.getLogger("hotreload.x").info("x.done", extra={"path": "/a"})
    structlog.stdlib.get_logger("hotreload.y").info("y.done", path="/b")
    logging.getLogger("uvicorn.access").info("chatter")
    logging.getLogger("jax._src").warning("slow %s", "compile")
    told = [(line["event"], line["logger"], line.get("path")) for line in lines(stream)]
    assert told == [
        ("x.done", "hotreload.x", "/a"),
        ("y.done", "hotreload.y", "/b"),
        ("slow compile", "jax._src", None),
    ]


def test_the_level_of_xla_is_left_to_the_environment() -> None:
    """JAX takes the level of its own logger for XLA's lines, whatever TF_CPP_MIN_LOG_LEVEL says."""
    configure("info", "json", stream := io.StringIO())
    assert logging.getLogger("jax").level == logging.NOTSET
    logging.getLogger("jax._src").info("chatter")
    assert lines(stream) == []


def test_an_exception_is_one_line_with_its_traceback() -> None:
    stream = io.StringIO()
    configure("info", "json", stream)
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("hotreload.x").exception("x.failed")
    (line,) = lines(stream)
    assert "ValueError: boom" in line["exception"]


def test_the_engine_may_replace_the_root_logger_and_ours_stay() -> None:
    stream = io.StringIO()
    configure("info", "json", stream)
    logging.basicConfig(level=logging.DEBUG, force=True, stream=io.StringIO())
    logging.getLogger("hotreload.x").info("x.done")
    logging.getLogger("sgl_jax.srt").info("chatter")
    logging.getLogger("sgl_jax.srt").error("trouble")
    assert [line["event"] for line in lines(stream)] == ["x.done", "trouble"]


def test_configuring_twice_writes_once() -> None:
    stream = io.StringIO()
    configure("info", "json", io.StringIO())
    configure("info", "json", stream)
    logging.getLogger("hotreload").info("once")
    assert len(lines(stream)) == 1


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_person_at_a_terminal_gets_no_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    configure("info", "auto", stream)
    LogObserver(Pace()).observe(AttemptFinished(went_live(), None))
    assert "reload.live" in stream.getvalue()
    assert not stream.getvalue().startswith("{")
    assert "\x1b" not in stream.getvalue()


def test_on_a_terminal_alone_the_end_of_an_attempt_and_long_words_are_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    told = {}
    for format in ("console", "json"):
        for stream in (Terminal(), io.StringIO()):
            configure("info", format, stream)
            LogObserver(Pace()).observe(AttemptFinished(went_live(), None))
            LogObserver(Pace()).observe(Wait("no checkpoint in /srv/" + "a" * 99))
            told[format, stream.isatty()] = stream.getvalue()
    live, waiting = told["console", True].splitlines()
    assert "by=" not in live  # the source wished it
    assert live.endswith("generation=4 label=step-8 took='1.8 s'")
    assert waiting.endswith("aaaa…'")
    for whole in told.keys() - {("console", True)}:
        assert "most_changed" in told[whole]
        assert "a" * 99 in told[whole]


# --- a stderr nobody reads ---------------------------------------------------------------


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    reader, writer = os.pipe()
    stream = os.fdopen(writer, "w")
    yield reader, stream
    stream.close()
    os.close(reader)


def handler() -> LossyHandler:
    (only,) = logging.getLogger("hotreload").handlers
    assert isinstance(only, LossyHandler)
    return only


def test_a_closed_stderr_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = open(os.devnull, "w")  # noqa: SIM115 (closed by hand, that is the point)
    monkeypatch.setattr(sys, "stderr", stream)
    configure("info", "json")
    stream.close()
    for _ in range(3):
        LogObserver(Pace()).observe(AttemptFinished(went_live(), None))
    assert handler().lost == 3


def test_no_stderr_at_all_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    configure("info", "auto")
    LogObserver(Pace()).observe(AttemptFinished(went_live(), None))
    assert handler().lost == 1


def test_a_reader_that_is_gone_never_raises() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        configure("info", "json", stream)
        LogObserver(Pace()).observe(AttemptFinished(went_live(), None))
        assert handler().lost == 1


def test_a_reader_that_sleeps_stops_nobody_and_is_told_what_it_missed(
    pipe: tuple[int, TextIO],
) -> None:
    reader, stream = pipe
    configure("info", "json", stream)
    logger = logging.getLogger("hotreload")
    for number in range(300):
        logger.info("x" * 3000, extra={"number": number})
    lost = handler().lost
    assert lost > 200
    read = bytearray()

    def drain() -> None:
        while b"log.lines_lost" not in read:
            read.extend(os.read(reader, 65536))

    thread = threading.Thread(target=drain)
    thread.start()
    while handler().lost:
        logger.info("again")
    thread.join()
    told = [_parsed(line) for line in read.decode().splitlines()]
    whole = [line for line in told if line]
    assert [line["number"] for line in whole if "number" in line] == list(range(300 - lost))
    (missed,) = [line["lines"] for line in whole if line["event"] == "log.lines_lost"]
    assert missed >= lost


def _parsed(line: str) -> dict[str, Any] | None:
    """None for the one line that was torn."""
    try:
        return dict(json.loads(line))
    except ValueError:
        return None


def test_a_long_download_is_a_line_every_ten_seconds_and_a_short_one_is_none() -> None:
    stream, now = io.StringIO(), 100.0
    configure("debug", "json", stream)
    pace = Pace(lambda: now)
    observe = both(pace, LogObserver(pace, lambda: now))
    for second in range(26):
        now = 100.0 + second
        observe(Progress(STEP_8, Phase.FETCHING, second * 10, 1000))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["done_bytes"] for line in lines] == [100, 200]
    assert (lines[0]["event"], lines[0]["level"]) == ("reload.progress", "info")
    assert (lines[0]["bytes_per_second"], lines[0]["seconds_left"]) == (10, 90.0)


def test_settings_that_were_read_again_are_told_with_what_is_left_to_do() -> None:
    changed, waits, wrong = logged(
        SettingsRead(("[reload] sets",)),
        SettingsRead(waiting=("[server] tcp",)),
        SettingsRead(error="is not TOML"),
    )
    assert (changed["level"], changed["event"]) == ("info", "settings.read")
    assert "todo" not in changed
    assert (waits["level"], waits["waiting"]) == ("warning", ["[server] tcp"])
    assert "restart hotreload" in waits["todo"]
    assert (wrong["level"], wrong["event"]) == ("warning", "settings.not_read")
    assert "send SIGHUP again" in wrong["todo"]
