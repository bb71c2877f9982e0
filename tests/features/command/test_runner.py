"""The daemon runs the operator's command beside an engine, and tells it all that it needs."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hotreload.core.way_in.entrance import Entrance
from hotreload.daemon import Daemon
from hotreload.errors import ConfigError
from hotreload.events import Events
from hotreload.features import FEATURES
from hotreload.features.command import judge
from hotreload.features.command.command import CommandEnd
from hotreload.features.command.judge import CommandRunner
from hotreload.life.start.start_engine import engine_options
from hotreload.settings.load import load
from hotreload.settings.sections import Settings
from hotreload.types import Lease, Revision, Staged
from tests.fakes import FakeEngine, FakeWeights, Steps
from tests.features.given import given
from tests.server.world import FIRST, LEAVES

ASKS_BOTH = Path(__file__).parents[2] / "integration" / "asks_both.py"
NEW = Revision("new", "step_2")


def settings(folder: Path, *sets: str) -> Settings:
    usual = [f"source.path={folder}", f"state.directory={folder / 'state'}", "metrics.address=''"]
    return load(None, [*usual, f"server.socket={folder / 's'}", *sets], {}, FEATURES).settings


@asynccontextmanager
async def deciding_by(folder: Path, *argv: str, says: str) -> AsyncIterator[tuple[Any, Staged]]:
    """What runs this command, and what it is to judge: weights that say so."""
    engine = FakeEngine(Steps(), FIRST.revision, LEAVES)
    entrance = Entrance[Any](Events().publish)
    entrance.gates[0].open(Lease(FIRST, engine, engine.live))
    decided = settings(folder, f"command.run={list(argv)}")
    staged = engine._spare(engine.set_of(NEW, FakeWeights(says)))
    runner = CommandRunner(given(decided, entrance))
    assert len(runner.judges()) == 1
    async with engine.as_candidate(staged):
        yield runner.run, staged


@pytest.mark.parametrize(("says", "code"), [("new", 1), (FIRST.revision.id, 0)])
async def test_it_asks_both_models_and_its_exit_code_decides(
    tmp_path: Path, says: str, code: int
) -> None:
    command = (sys.executable, "-I", str(ASKS_BOTH))
    async with deciding_by(tmp_path, *command, says=says) as (run, staged):
        end = await run(0, staged)
    sayings = (f"candidate: {says} clean", f"live: {FIRST.revision.id} clean")
    assert end == CommandEnd(code, sayings)


async def test_it_is_told_where_to_ask_what_it_asks_about_and_nothing_else(tmp_path: Path) -> None:
    async with deciding_by(tmp_path, "/usr/bin/env", says="new") as (run, staged):
        one, other = await run(0, staged), await run(0, staged)
    told = dict(line.split("=", 1) for line in one.lines)
    assert told.keys() == {
        *("PATH", "HOME", "LANG", "OPENAI_BASE_URL", "OPENAI_API_KEY", "HOTRELOAD_CANDIDATE_URL"),
        *("HOTRELOAD_SOCKET", "HOTRELOAD_REVISION", "HOTRELOAD_LABEL"),
    }
    assert told["OPENAI_BASE_URL"] == told["HOTRELOAD_CANDIDATE_URL"]
    assert told["OPENAI_BASE_URL"].startswith("http://127.0.0.1:")
    assert told["HOTRELOAD_SOCKET"] == str(tmp_path / "s")
    assert (told["HOTRELOAD_REVISION"], told["HOTRELOAD_LABEL"]) == ("new", "step_2")
    again = dict(line.split("=", 1) for line in other.lines)
    assert len(told["OPENAI_API_KEY"]) >= 32
    assert told["OPENAI_API_KEY"] != again["OPENAI_API_KEY"]


async def test_without_an_address_it_has_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_free(*parts: object) -> None:
        raise ConfigError("[server] tcp: cannot listen")

    monkeypatch.setattr(judge, "serve_at_loopback", none_free)
    async with deciding_by(tmp_path, "true", says="new") as (run, staged):
        end = await run(0, staged)
    assert (end.code, "has no address where it could ask" in end.why) == (None, True)


def test_what_is_decided_about_it_reaches_the_engine(tmp_path: Path) -> None:
    assert engine_options(settings(tmp_path), tmp_path).unseen.candidate_tokens == 0
    decided = settings(tmp_path, "command.run=['true']", "command.tokens=4096")
    assert engine_options(decided, tmp_path).unseen.candidate_tokens == 4096


def test_without_a_command_there_is_none(tmp_path: Path) -> None:
    assert CommandRunner(given(settings(tmp_path))).judges() == []


def test_a_daemon_does_not_begin_with_a_user_that_its_command_cannot_have(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\[command\] user: there is no user"):
        Daemon(settings(tmp_path, "command.user=nosuchuser"))
