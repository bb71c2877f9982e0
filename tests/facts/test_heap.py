"""While a process starts Python hardly looks for garbage, and once it serves as everywhere."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from hotreload import cli
from hotreload.engine.upstream import frozen
from hotreload.errors import ConfigError
from hotreload.facts.heap import SELDOM, STARTING, collect_seldom, keep_what_is_there
from tests.integration.running import Running
from tests.waiting import turn_until
from tests.words.engine import starting_engines_of_words


@pytest.fixture(autouse=True)
def as_usual() -> Iterator[None]:
    usual = gc.get_threshold()
    yield
    keep_what_is_there(STARTING)
    gc.unfreeze()
    gc.set_threshold(*usual)


class Circle:
    def __init__(self) -> None:
        self.itself = self


def of_no_more_use() -> weakref.ref[Circle]:
    return weakref.ref(Circle())


def test_serve_hardly_looks_from_its_first_import_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, usual = [], gc.get_threshold()

    def no_settings(*args: object) -> Path:
        seen.append(gc.get_threshold())
        raise ConfigError("there are none")

    monkeypatch.setattr("hotreload.settings.load.config_file", no_settings)
    assert cli.main(["serve"]) == 78
    assert (seen, gc.get_threshold()) == ([SELDOM], usual)


async def test_who_serves_looks_as_usual(tmp_path: Path) -> None:
    usual = gc.get_threshold()
    collect_seldom(STARTING)
    with starting_engines_of_words():
        running = Running(tmp_path)
        running.drop(1)
        async with running.serving():
            await turn_until(lambda: gc.get_threshold() == usual)


def test_an_engine_looks_through_a_program_that_is_not_ours() -> None:
    collect_seldom(STARTING)
    left = of_no_more_use()
    frozen.freeze(self := object())
    assert left() is not None
    keep_what_is_there(STARTING)
    gc.unfreeze()
    frozen.freeze(self)
    assert left() is None
    frozen.thaw(self, None)
