"""After an engine in a program has ended, nothing of it is on the device, whoever holds what."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hotreload import AsyncHotEngine, HotEngine, HotTerms, Probe
from hotreload.errors import CheckpointRejected, HotReloadError, NotServing
from hotreload.tiny import parse_saying, write_tiny
from hotreload.tiny.weights import hand_built
from tests.engine import real

pytestmark = pytest.mark.real_engine

import jax  # noqa: E402

START: dict[str, Any] = {
    "device": "cpu",
    "dtype": "bfloat16",
    "args": real.ARGS,
    "probes": [Probe("Who?", 12, contains="policy")],
    "terms": HotTerms(max_drift=1.5),
}


def saying(number: int, words: str = "policy") -> dict[str, Any]:
    return dict(hand_built(parse_saying(f"{words} {number}"), "qwen3"))


def bad_ones() -> Iterator[dict[str, Any]]:
    """What is refused when it is checked, when it is loaded, and when it answers."""
    name, norm = "model.norm.weight", saying(1)["model.norm.weight"]
    yield saying(1) | {name: norm[:8]}
    yield saying(1) | {name: norm * norm.dtype.type(100)}  # beyond the drift that is allowed
    yield saying(1, "hello")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("end") / "model", "policy 0")


class Arrays:
    """Those on the device that were not there before."""

    def __init__(self) -> None:
        self._before = self._all()

    @property
    def fresh(self) -> int:
        known = {id(each) for each in self._before}
        return sum(id(each) not in known for each in self._all())

    def _all(self) -> list[Any]:
        arrays: list[Any] = jax.live_arrays()  # type: ignore[no-untyped-call]
        return arrays


def test_nothing_is_left_on_the_device_whatever_the_program_still_holds(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrays, held = Arrays(), list[Any]()
    hot = HotEngine(model, **START)
    held += [hot, hot.asynchronous, hot.update(saying(1))]
    for bad in bad_ones():
        with pytest.raises(CheckpointRejected) as refused:
            hot.update(bad)
        held.append(refused.value)
    held += [hot.stage(saying(2)), stream := hot.stream("Who serves?", real.ENDLESS)]
    next(stream)
    assert arrays.fresh > 50
    hot.close()
    with pytest.raises(NotServing) as closed:
        next(stream)
    held.append(closed.value)
    assert arrays.fresh == 0
    assert len(held) == 9
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_neither_is_there_where_the_loop_is_the_programs_and_the_engine_was_lost(
    model: Path,
) -> None:
    arrays, held = Arrays(), list[Any]()
    hot = await AsyncHotEngine.start(model, **START)
    held += [hot, await hot.stage(saying(2)), stream := hot.stream("Who serves?", real.ENDLESS)]
    await anext(stream)
    hot._replica.engine.lose("the test says so")
    for work in (hot.generate("Who?"), held[1].flip(), anext(stream)):
        with pytest.raises(HotReloadError) as lost:
            await work
        held.append(lost.value)
    await hot.close()
    assert arrays.fresh == 0
    assert len(held) == 6
